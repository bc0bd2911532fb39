"""Rollouts: responses sampled from the policy, invalid ones rejected."""

from __future__ import annotations

from prefect import get_run_logger

from rlhf_core.data.refs import CheckpointRef, StageRef
from rlhf_core.rollout.stage import run_stage
from tasks.retrying import engines, stage_task
from tasks.run import Run


@stage_task(run_name="rollouts-{iteration}")
def generate_rollouts(run: Run, policy: CheckpointRef, iteration: int) -> StageRef:
    """Sample one iteration's responses; seeds come from the run, the prompt and the iteration, so a retry is safe."""
    with engines(run, "rollouts", iteration) as runtime:
        rollouts = run_stage(runtime, policy, iteration)
    get_run_logger().info(
        "%d rollouts, %.0f tokens each, %.0f %% ended by themselves, %.0f %% accepted",
        rollouts.rows,
        rollouts.metrics["rollout/response_tokens_mean"],
        100 * rollouts.metrics["rollout/natural_fraction"],
        100 * rollouts.metrics["rollout/acceptance_rate"],
    )
    return rollouts
