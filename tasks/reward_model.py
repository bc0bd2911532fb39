"""The reward model: trained (or given) and validated before any RL step."""

from __future__ import annotations

from prefect import get_run_logger

from rlhf_core.data.refs import RewardModelResult
from rlhf_core.reward_model.stage import run_stage
from tasks.retrying import engines, stage_task
from tasks.run import Run


@stage_task(run_name="reward-model")
def train_and_validate_reward_model(run: Run) -> RewardModelResult:
    """Train the reward model unless one is given, and let it earn its place on held-out pairs."""
    with engines(run, "reward model") as runtime:
        result = run_stage(runtime)
    if result.accuracy is None:
        get_run_logger().info("rewards come from a callable; there is no reward model to validate")
    else:
        get_run_logger().info(
            "reward model accepted: accuracy %.3f [%.3f, %.3f] on held-out pairs",
            result.accuracy,
            result.accuracy_low,
            result.accuracy_high,
        )
    return result
