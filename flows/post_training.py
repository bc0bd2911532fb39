"""The whole run: from an SFT model to a better one, or to a healthy one and a report of what went wrong."""

from __future__ import annotations

from pathlib import Path

from prefect import flow
from prefect.runtime import flow_run

import tasks
from flows.benchmarks import benchmark_gate
from flows.core_logs import forward_core_log_lines
from flows.iteration import ppo_iteration
from flows.preflight import preflight
from flows.reward_model import reward_model
from flows.sft_baseline import sft_baseline
from rlhf_core.data.refs import EvaluationResult
from rlhf_core.errors import CheckpointError
from tasks.run import Run, RunOutcome


def _run_name() -> str:
    """Name of the flow's run in the UI: that of the run folder, as far as the parameters tell."""
    given: dict[str, str | None] = flow_run.parameters
    return given["run_name"] or f"{Path(given['config'] or '').stem}-{str(flow_run.id)[:8]}"


@flow(name="post-training", flow_run_name=_run_name)
def post_training(
    config: str = "quickstart",
    run_name: str | None = None,
    overrides: list[str] | None = None,
    resume: bool = False,
) -> RunOutcome:
    """Post-train a language model with PPO, watch over its abilities, and end with a report.

    Args:
        config: a preset such as `quickstart`, or the path of a YAML file.
        run_name: name of the run's folder; left empty, the configuration's (a deployment's runs add their id).
        overrides: settings that replace the file's, each as `dotted.key=value`, e.g. `ppo.actor.learning_rate=5e-7`.
        resume: go on with the run of that name; what is finished is not done again.
    """
    forward_core_log_lines()
    settings = tasks.prepare_quickstart_world(tasks.read_config(config, run_name, overrides or []))
    run = tasks.open_run(settings, resume)
    with tasks.closed_at_the_end(run):
        preflight(run)
        sft_baseline(run)
        baseline = reward_model(run)
        train(run, baseline)
        return tasks.conclude(run)


def train(run: Run, baseline: EvaluationResult) -> None:
    """Train to the end; where a checkpoint turns out damaged, go on from the last whole one before it."""
    while True:
        try:
            return train_from_current(run, baseline)
        except CheckpointError as error:
            tasks.fall_back(run, error)


def train_from_current(run: Run, baseline: EvaluationResult) -> None:
    """Rounds of iterations and a gate each, until they are done or a decision says stop."""
    policy = tasks.start_policy(run)
    if policy.step:
        tasks.record_metrics(run, policy)  # an interruption may have come between the update and its metrics
    for round_number in tasks.remaining_rounds(run):
        while iterations := tasks.remaining_iterations(run, round_number):
            policy = ppo_iteration(run, policy, iterations[0])
            policy = tasks.sound_policy(run, policy, wait=len(iterations) == 1)
        decision, policy = benchmark_gate(run, policy, baseline, round_number)
        if decision.kind == "stop":
            return
