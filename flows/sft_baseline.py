"""The floor that the run must not fall below."""

from __future__ import annotations

from prefect import flow

import tasks
from rlhf_core.data.refs import EvaluationResult
from tasks.run import Run


@flow(name="sft-baseline", flow_run_name="sft-baseline")
def sft_baseline(run: Run) -> EvaluationResult:
    """Benchmarks, perplexity and reward of the SFT model, on the items that every gate uses."""
    return tasks.evaluate_baseline(run)
