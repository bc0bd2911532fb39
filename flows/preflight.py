"""Preflight: find what is wrong before any model is trained."""

from __future__ import annotations

from prefect import flow

import tasks
from tasks.run import Run


@flow(name="preflight", flow_run_name="preflight")
def preflight(run: Run) -> None:
    """Warn of risky settings; read and validate every source of data."""
    tasks.check_config(run)
    tasks.prepare_data(run)
