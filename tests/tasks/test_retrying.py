"""Which errors are retried, and what happens to the engines before that."""

from __future__ import annotations

import os

import pytest
from prefect.logging import disable_run_logger
from prefect.states import Failed

from rlhf_core import errors
from rlhf_core.data.events import read_events
from rlhf_core.data.refs import ControlState
from rlhf_core.errors import DataError, EngineError, NumericsError, OutOfMemory, RlhfError
from rlhf_core.recovery.ledger import read_attempts, start_attempt
from rlhf_core.recovery.plan import Plan
from rlhf_core.runtime import close_runtime
from tasks import retrying
from tasks.retrying import engines, is_transient, note_lost_attempts
from tasks.run import Run
from tests.tasks.open_run import open_run

ALL = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RlhfError)]
HEALED = {
    "NumericsError",
    "KlCollapse",
    "EngineError",
    "OutOfMemory",
    "WorkerLost",
    "RolloutServerLost",
    "StaleEngine",
    "CommunicationTimeout",
    "Stalled",
    "RemoteScorerError",
}


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_only_what_time_or_a_fresh_engine_heals_is_retried(kind):
    assert is_transient(None, None, Failed(data=kind("what, where, what to do"))) == (kind.__name__ in HEALED)


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyError("a bug")])
def test_an_error_of_unknown_kind_is_not_retried(error):
    assert not is_transient(None, None, Failed(data=error))


@pytest.mark.parametrize(("error", "is_dropped"), [(EngineError, True), (OutOfMemory, True), (DataError, False)])
def test_engines_are_dropped_before_a_retry_and_kept_otherwise(tmp_path, error, is_dropped):
    with open_run(tmp_path) as (run, runtime), disable_run_logger():
        scorer = runtime.scorer()
        with pytest.raises(error, match="broke"), engines(run, "scores") as given:
            assert given is runtime
            raise error("it broke; try again.")
        assert (runtime.scorer() is not scorer) == is_dropped


def test_every_attempt_is_written_down_before_it_starts_and_after_it_ended(tmp_path):
    with open_run(tmp_path) as (run, runtime), disable_run_logger():
        with engines(run, "scores", 3):
            (running,) = read_attempts(runtime.folder)
            assert (running.stage, running.iteration, running.outcome) == ("scores", 3, None)
            assert (running.pid, running.epoch) == (os.getpid(), runtime.lock.epoch)
        fail(run, DataError("a table is empty"))
        with pytest.raises(KeyboardInterrupt), engines(run, "scores", 3):
            raise KeyboardInterrupt
        found = [(one.outcome, one.error_class, one.gave_up) for one in read_attempts(runtime.folder)]
        assert found == [("ok", None, False), ("error", "data", False), ("interrupted", None, False)]


def test_the_settings_of_the_plan_are_in_force_and_those_of_the_run_stay(tmp_path):
    with open_run(tmp_path) as (run, runtime), disable_run_logger():
        control = ControlState(kl_coef=0.1, ptx_coef=0.0)
        seen: list[tuple[int, float, bool]] = []
        for _ in range(4):
            with pytest.raises(NumericsError), engines(run, "update", 3):
                settings, steered = runtime.plan.config, runtime.plan.applied_to(control)
                assert (steered.kl_coef == 0.2) == (steered.learning_rate_factor == 0.5)
                micro, is_saving = settings.ppo.micro_batch_rollouts, settings.model.gradient_checkpointing
                seen.append((micro, steered.learning_rate_factor, is_saving))
                raise NumericsError("NaN; look at the rewards.")
        assert seen == [(8, 1.0, False), (8, 1.0, False), (4, 0.5, False), (4, 0.5, True)]
        assert runtime.config.ppo.micro_batch_rollouts == 8
        kinds = [event["kind"] for event in read_events(runtime.folder)]
        assert kinds == [*["attempt_failed", "retry"] * 3, "attempt_failed", "gave_up"]
        assert "learning rates × 0.5, β × 2" in read_events(runtime.folder)[-1]["message"]


@pytest.mark.parametrize(
    ("retries", "error", "expected"),
    [
        (1, EngineError("it broke."), ["retry step 1: the same settings", "no further attempt is allowed"]),
        (3, EngineError("it broke."), ["retry step 1: the same settings", "retry step 2: learning rates × 0.5"]),
        (3, DataError("no rows."), ["no retry can heal it", "no retry can heal it"]),
    ],
)
def test_people_are_told_of_each_failure_and_what_follows(tmp_path, monkeypatch, retries, error, expected):
    told: list[tuple[int, str]] = []
    monkeypatch.setattr(retrying, "on_failure", lambda run, failed, following: told.append((failed.attempt, following)))
    with open_run(tmp_path, recovery={"retries": retries}) as (run, _), disable_run_logger():
        for _ in expected:
            fail(run, error)
    assert [number for number, _ in told] == [1, 2]
    assert all(found.startswith(words) for (_, found), words in zip(told, expected, strict=True))


def test_engines_built_with_other_settings_are_dropped(tmp_path):
    with open_run(tmp_path) as (_, runtime):
        scorer = runtime.scorer()
        runtime.adopt(Plan(runtime.config, kl_coef_factor=2.0))
        assert runtime.scorer() is scorer
        runtime.adopt(Plan(runtime.config.model_copy(update={"seed": 5})))
        assert runtime.scorer() is not scorer


@pytest.mark.parametrize("error", [EngineError("it broke"), MemoryError()], ids=repr)
def test_attempts_are_counted_over_all_processes(tmp_path, error):
    def may_go_on() -> bool:
        return is_transient(None, None, Failed(data=error))

    with open_run(tmp_path) as (run, _), disable_run_logger():
        for _ in range(run.recovery.retries):
            fail(run, error)
            assert may_go_on()
        close_runtime(run.folder)  # another process goes on; Prefect counts from 1 again there
        fail(run, error)
        assert not may_go_on()


def test_a_lost_process_is_noticed_by_the_next_one(tmp_path):
    with open_run(tmp_path) as (run, runtime), disable_run_logger():
        start_attempt(runtime.folder, (), stage="update", iteration=3, epoch=1, plan={})
        note_lost_attempts(run)
        assert [event["kind"] for event in read_events(runtime.folder)] == ["orchestrator_lost"]


def fail(run: Run, error: BaseException) -> None:
    with pytest.raises(type(error)), engines(run, "scores", 3):
        raise error


def test_a_stage_that_ends_well_has_its_time_recorded(tmp_path):
    with open_run(tmp_path) as (run, runtime), engines(run, "scores", 3):
        pass
    assert '"stage": "scores"' in (runtime.folder.metrics / "timing.jsonl").read_text()
