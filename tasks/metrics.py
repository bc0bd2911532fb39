"""The metrics row of a finished iteration."""

from __future__ import annotations

from prefect import get_run_logger

from rlhf_core.data.refs import CheckpointRef
from rlhf_core.data.store import load_stage
from rlhf_core.reporting.metrics import record_iteration
from tasks.artifacts import publish_progress
from tasks.retrying import engines, stage_task
from tasks.run import Run

STAGES = ("rollouts", "scored", "validated", "experience")


@stage_task(run_name="metrics-{policy.step}")
def record_metrics(run: Run, policy: CheckpointRef) -> int:
    """Store what the iteration that made `policy` measured; it lies in the run folder, so a repeat is safe."""
    iteration = policy.step
    metrics = dict(policy.metrics)
    with engines(run, "metrics", iteration) as runtime:
        for stage in STAGES:
            metrics |= load_stage(runtime.folder.iteration(iteration) / stage).metrics
        record_iteration(runtime.folder, iteration, metrics)
    get_run_logger().info("iteration %d of %d: %d metrics", iteration, run.iterations, len(metrics))
    publish_progress(run, iteration)
    return len(metrics)
