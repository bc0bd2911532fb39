"""Scores: what the reward model says of each response, normalised."""

from __future__ import annotations

from prefect import get_run_logger

from rlhf_core.data.refs import StageRef
from rlhf_core.rewards.stage import run_stage
from tasks.retrying import engines, stage_task
from tasks.run import Run


@stage_task(run_name="scores-{iteration}")
def score_rollouts(run: Run, rollouts: StageRef, iteration: int) -> StageRef:
    """Score every rollout; a score that is no number is counted and its rollout left out."""
    with engines(run, "scores", iteration) as runtime:
        scored = run_stage(runtime, rollouts, iteration)
    get_run_logger().info(
        "raw reward %.3f ± %.3f, %.0f %% clipped, %d excluded",
        scored.metrics["reward/raw_mean"],
        scored.metrics["reward/raw_std"],
        100 * scored.metrics["reward/clipped_fraction"],
        scored.metrics["reward/excluded_count"],
    )
    return scored
