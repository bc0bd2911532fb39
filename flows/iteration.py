"""One PPO iteration."""

from __future__ import annotations

from prefect import flow

import tasks
from rlhf_core.data.refs import CheckpointRef
from tasks.run import Run


@flow(name="ppo-iteration", flow_run_name="iteration-{iteration}")
def ppo_iteration(run: Run, policy: CheckpointRef, iteration: int) -> CheckpointRef:
    """Sample, score, keep what is sound, work out what was better than expected, and learn from it."""
    rollouts = tasks.generate_rollouts(run, policy, iteration)
    scored = tasks.score_rollouts(run, rollouts, iteration)
    validated = tasks.validate_rollouts(run, scored, iteration)
    experience = tasks.build_experience(run, policy, validated, iteration)
    updated = tasks.update_policy(run, policy, experience, iteration)
    tasks.record_metrics(run, updated)
    return updated
