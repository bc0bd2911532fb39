"""The adaptive retries through the whole flow: faults that heal at a step of the plan, and one that never does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterKey,
    FlowRunFilter,
    FlowRunFilterName,
)

from flows.post_training import post_training
from rlhf_core.checkpoints.registry import Registry
from rlhf_core.config.run import RunConfig
from rlhf_core.data.events import read_events
from rlhf_core.data.refs import ControlState
from rlhf_core.data.store import MANIFEST, RunFolder, read_json
from rlhf_core.engines.torch_trainer import TorchTrainer
from rlhf_core.errors import EngineError, NumericsError, OutOfMemory, RlhfError
from rlhf_core.recovery.ledger import read_attempts
from rlhf_core.reporting.status import run_status
from rlhf_core.update.ppo import PpoUpdate
from tests.flows.tiny_run import metrics_rows, settings, write_config

Healed = Callable[[RunConfig, ControlState], bool]


@pytest.fixture
def updates(monkeypatch) -> Callable[[Callable[[RunConfig, ControlState, int], RlhfError | None]], None]:
    """Let updates fail at their start with the error that a function returns."""
    prepare = PpoUpdate.__init__

    def install(fault: Callable[[RunConfig, ControlState, int], RlhfError | None]) -> None:
        def start(self: PpoUpdate, trainer: TorchTrainer, *parts: Any, iteration: int = 1, **options: Any) -> None:
            error = fault(trainer.config, parts[-1], iteration)
            if error is not None:
                raise error
            prepare(self, trainer, *parts, iteration=iteration, **options)

        monkeypatch.setattr(PpoUpdate, "__init__", start)

    return install


def start(world: Any, home: Path, name: str, **sections: Any) -> RunFolder:
    """Run the flow; its folder, also where it fails."""
    recovery = {"retries": 3, "delays_seconds": [0.1]}
    config = write_config(home, settings(world, home, **{"rounds": 1, "recovery": recovery} | sections))
    post_training(config=str(config), run_name=name)
    return RunFolder(home / name)


def updates_of(folder: RunFolder) -> list[tuple[int, str | None, dict[str, Any]]]:
    return [(one.step, one.error_class, one.changes) for one in read_attempts(folder) if one.stage == "update"]


def kinds(folder: RunFolder) -> list[str]:
    return [event["kind"] for event in read_events(folder)]


GENTLER = {"learning_rate_factor": 0.5, "kl_coef_factor": 2.0, "ppo.micro_batch_rollouts": 4}


def test_a_fault_that_a_lower_learning_rate_heals(world, tmp_path, updates):
    keys: list[str] = []
    steered: list[ControlState] = []

    def fault(config: RunConfig, control: ControlState, iteration: int) -> RlhfError | None:
        keys.append(read_json(RunFolder(tmp_path / "lower").iteration(iteration) / "experience" / MANIFEST)["key"])
        steered.append(control)
        return None if control.learning_rate_factor == 0.5 else NumericsError("NaN in the gradients; wait.")

    updates(fault)
    folder = start(world, tmp_path, "lower", iterations_per_round=2)
    assert updates_of(folder) == [
        (0, "non_finite", {}),
        (1, "non_finite", {}),
        (2, None, GENTLER),
        (0, None, GENTLER),  # the next iteration goes on with them
    ]
    assert kinds(folder).count("attempt_failed") == kinds(folder).count("retry") == 2
    assert run_status(folder).state == "finished"
    # β acts in the token rewards, so the experience is made anew with twice of it, and once only.
    assert keys[0] == keys[1] != keys[2]
    first, second = (Registry(folder).state.checkpoints[step].ref.control for step in (1, 2))
    assert first.learning_rate_factor == second.learning_rate_factor == 1.0
    assert [one.kl_coef for one in steered] == [0.05, 0.05, 0.1, 2 * first.kl_coef]
    rates = [row["update/actor_learning_rate"] for row in metrics_rows(folder.path)]
    assert max(rates) <= 0.5e-3


@pytest.mark.parametrize(
    ("name", "is_healed", "expected"),
    [
        (
            "micro-batch",
            lambda config: config.ppo.micro_batch_rollouts <= 2,
            [(0, {}), (1, {"ppo.micro_batch_rollouts": 4}), (2, {"ppo.micro_batch_rollouts": 2})],
        ),
        (
            "offload",
            lambda config: config.model.gradient_checkpointing,
            [
                (0, {}),
                (1, {"ppo.micro_batch_rollouts": 4}),
                (2, {"ppo.micro_batch_rollouts": 2}),
                (3, {"ppo.micro_batch_rollouts": 2, "model.gradient_checkpointing": True}),
            ],
        ),
    ],
)
def test_memory_that_smaller_micro_batches_or_recomputing_saves(world, tmp_path, updates, name, is_healed, expected):
    updates(lambda config, *_: None if is_healed(config) else OutOfMemory("memory ran out; lower the micro-batch."))
    folder = start(world, tmp_path, name)
    assert [(step, changes) for step, _, changes in updates_of(folder)] == expected
    assert run_status(folder).state == "finished"


def test_a_fault_that_never_heals_fails_after_the_allowed_attempts_with_a_report(world, tmp_path, updates):
    updates(lambda *_: EngineError("rank 0 does not answer; look at its log."))
    with pytest.raises(EngineError, match="rank 0 does not answer"):
        start(world, tmp_path, "never")
    folder = RunFolder(tmp_path / "never")
    assert [step for step, _, _ in updates_of(folder)] == [0, 1, 2, 3]
    assert [one.gave_up for one in read_attempts(folder) if one.stage == "update"] == [False, False, False, True]
    given_up = [event for event in read_events(folder) if event["kind"] == "gave_up"]
    assert len(given_up) == 1 and "failed attempts: 4" in given_up[0]["message"]
    for words in ("the same settings", "learning rates × 0.5, β × 2", "gradient_checkpointing"):
        assert words in given_up[0]["message"]
    report = folder.report.read_text()
    assert "Attempts that failed, were lost, or tried again" in report and "rank 0 does not answer" in report
    status = run_status(folder)
    assert status.state == "failed" and "4 failed; last: update of iteration 1, retry step 3" in status.attempts
    with get_client(sync_client=True) as client:
        (run,) = client.read_flow_runs(flow_run_filter=FlowRunFilter(name=FlowRunFilterName(any_=["never"])))
        assert run.state is not None and run.state.is_failed()
        key = ArtifactFilter(key=ArtifactFilterKey(any_=["never-attempts"]))
        tables = client.read_artifacts(artifact_filter=key)
    assert len(tables) == 4 and all("rank 0 does not answer" in str(table.data) for table in tables)


def test_a_checkpoint_that_turns_out_damaged_costs_its_iterations_and_no_run(world, tmp_path, updates):
    damaged: list[Path] = []

    def fault(config: RunConfig, control: ControlState, iteration: int) -> RlhfError | None:
        if iteration != 2 or damaged:
            return None
        file = RunFolder(tmp_path / "damaged").checkpoints / "step-000001" / "trainer" / "actor_optimizer.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
        damaged.append(file)
        return EngineError("the engine broke; try again.")

    updates(fault)
    folder = start(world, tmp_path, "damaged", iterations_per_round=2)
    classes = [(one.iteration, one.error_class) for one in read_attempts(folder) if one.stage == "update"]
    assert classes == [(1, None), (2, "engine"), (2, "damaged_checkpoint"), (1, None), (2, None)]
    assert "checkpoint_fallback" in kinds(folder) and "gave_up" not in kinds(folder)
    assert run_status(folder).state == "finished" and Registry(folder).state.last_step() == 2
