"""The pipeline as a library, without Prefect: the same stages in the same order give the same numbers.

Usage: python examples/without_prefect.py CONFIG [dotted.key=value ...]
"""

from __future__ import annotations

import sys
from pathlib import Path

from rlhf_core.checkpoints import stage as checkpoints
from rlhf_core.config.load import load_config
from rlhf_core.data import prepare, validation_stage
from rlhf_core.data.refs import CheckpointRef
from rlhf_core.data.store import load_stage
from rlhf_core.decisions import stage as decisions
from rlhf_core.evaluation import stage as evaluation
from rlhf_core.experience import stage as experience
from rlhf_core.quickstart.resolve import needs_quickstart_world, resolve
from rlhf_core.reporting.metrics import record_iteration
from rlhf_core.reporting.report import write_report
from rlhf_core.reward_model import stage as reward_model
from rlhf_core.rewards import stage as rewards
from rlhf_core.rollout import stage as rollout
from rlhf_core.runtime import Runtime, close_runtime, open_runtime, prepare_run
from rlhf_core.update import stage as update

MEASURED = ("rollouts", "scored", "validated", "experience")


def run(source: str, overrides: list[str]) -> Path:
    """Do a whole run, or what is left of it, and return its report."""
    config = load_config(source, overrides)
    if needs_quickstart_world(config):
        config = resolve(config)
    folder = prepare_run(config, resume=True)
    runtime = open_runtime(folder.path)
    try:
        train(runtime)
    finally:
        close_runtime(folder.path)
    return write_report(folder)


def train(runtime: Runtime) -> None:
    """Everything between the configuration and the report."""
    prepare.run_stage(runtime)
    reward_model.run_stage(runtime)
    baseline = evaluation.run_baseline(runtime)
    policy = checkpoints.start_policy(runtime)
    for round_number in checkpoints.remaining_rounds(runtime.folder, runtime.config):
        for iteration in checkpoints.remaining_iterations(runtime.folder, runtime.config, round_number):
            policy = iterate(runtime, policy, iteration)
        result = evaluation.run_gate(runtime, policy, round_number)
        decision = decisions.run_stage(runtime, round_number, policy, result, baseline)
        policy = checkpoints.apply_decision(runtime, decision, policy, result, baseline, round_number=round_number)
        if decision.kind == "stop":
            return


def iterate(runtime: Runtime, policy: CheckpointRef, iteration: int) -> CheckpointRef:
    """One PPO iteration."""
    rollouts = rollout.run_stage(runtime, policy, iteration)
    scored = rewards.run_stage(runtime, rollouts, iteration)
    validated = validation_stage.run_stage(runtime, scored, iteration)
    learnt_from = experience.run_stage(runtime, policy, validated, iteration)
    updated = update.run_stage(runtime, policy, learnt_from, iteration)
    metrics = dict(updated.metrics)
    for name in MEASURED:
        metrics |= load_stage(runtime.folder.iteration(iteration) / name).metrics
    record_iteration(runtime.folder, iteration, metrics)
    return updated


if __name__ == "__main__":
    print(run(sys.argv[1], sys.argv[2:]))
