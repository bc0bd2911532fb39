"""Experience: log-probs, KL-shaped rewards and advantages of the validated rollouts."""

from __future__ import annotations

from prefect import get_run_logger

from rlhf_core.data.refs import CheckpointRef, StageRef
from rlhf_core.experience.stage import run_stage
from tasks.retrying import engines, stage_task
from tasks.run import Run


@stage_task(run_name="experience-{iteration}")
def build_experience(run: Run, policy: CheckpointRef, validated: StageRef, iteration: int) -> StageRef:
    """Evaluate the rollouts with policy, reference and critic, and store what the update learns from."""
    with engines(run, "experience", iteration) as runtime:
        experience = run_stage(runtime, policy, validated, iteration)
    get_run_logger().info(
        "KL %.4f nats per token, entropy %.3f nats, mean |advantage| %.3f",
        experience.metrics["experience/kl_exact_nats"],
        experience.metrics["experience/entropy_nats"],
        experience.metrics["experience/mean_abs_advantage"],
    )
    return experience
