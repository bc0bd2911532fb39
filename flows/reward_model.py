"""The reward model earns its place before any RL step."""

from __future__ import annotations

from prefect import flow

import tasks
from rlhf_core.data.refs import EvaluationResult
from tasks.run import Run


@flow(name="reward-model", flow_run_name="reward-model")
def reward_model(run: Run) -> EvaluationResult:
    """Train a reward model, or take the given one; validate it; then see what the SFT model earns under it."""
    tasks.train_and_validate_reward_model(run)
    return tasks.evaluate_baseline(run)
