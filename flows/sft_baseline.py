"""The floor that the run must not fall below."""

from __future__ import annotations

from prefect import flow

import tasks
from tasks.run import Run


@flow(name="sft-baseline", flow_run_name="sft-baseline")
def sft_baseline(run: Run) -> None:
    """Benchmarks and perplexity of the SFT model, on the items that every gate uses."""
    tasks.evaluate_abilities(run)
