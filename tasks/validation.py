"""Validation: the scored rollouts against their great-expectations suite."""

from __future__ import annotations

from prefect import get_run_logger

from rlhf_core.data.refs import StageRef
from rlhf_core.data.validation_stage import run_stage
from tasks.retrying import engines, stage_task
from tasks.run import Run


@stage_task(run_name="validation-{iteration}")
def validate_rollouts(run: Run, scored: StageRef, iteration: int) -> StageRef:
    """Keep the rows that meet the expectations; others are quarantined with their reasons, or stop the run."""
    with engines(run, "validation", iteration) as runtime:
        validated = run_stage(runtime, scored, iteration)
    get_run_logger().info("%d rows pass, %d quarantined", validated.rows, validated.metrics["validation/quarantined"])
    return validated
