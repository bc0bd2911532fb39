"""Update: PPO epochs over the experience, then a checkpoint."""

from __future__ import annotations

from prefect import get_run_logger

from rlhf_core.data.refs import CheckpointRef, StageRef
from rlhf_core.data.store import load_stage
from rlhf_core.experience.stage import run_stage as build_experience
from rlhf_core.update.stage import run_stage
from tasks.retrying import engines, stage_task
from tasks.run import Run


@stage_task(run_name="update-{iteration}")
def update_policy(run: Run, policy: CheckpointRef, experience: StageRef, iteration: int) -> CheckpointRef:
    """Learn from the experience and save the result; a retry starts again from `policy`."""
    with engines(run, "update", iteration) as runtime:
        if runtime.plan.kl_coef_factor != 1:  # β acts in the token rewards, so they are made anew, unless they have it
            validated = load_stage(runtime.folder.iteration(iteration) / "validated")
            experience = build_experience(runtime, policy, validated, iteration)
        updated = run_stage(runtime, policy, experience, iteration)
    value_loss = updated.metrics.get("update/value_loss")
    get_run_logger().info(
        "policy loss %.4f, %s, approximate KL %.4f nats in %d steps; next kl_coef %.4f",
        updated.metrics["update/policy_loss"],
        "no critic" if value_loss is None else f"value loss {value_loss:.4f}",
        updated.metrics["update/approx_kl_nats"],
        updated.metrics["update/optimizer_steps"],
        updated.control.kl_coef,
    )
    return updated
