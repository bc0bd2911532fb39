"""Attempts are on the disk before they start, and a process that died in one has left its mark."""

from __future__ import annotations

import json

import pytest

from rlhf_core.data.events import read_events
from rlhf_core.data.store import RunFolder
from rlhf_core.errors import DataError, NumericsError, OrchestratorLost, OutOfMemory
from rlhf_core.recovery.ledger import (
    Attempt,
    attempts_near,
    end_attempt,
    fail_attempt,
    failures_in_a_row,
    lost_without_progress,
    note_lost,
    read_attempts,
    start_attempt,
)


def begin(folder: RunFolder, stage: str = "update", iteration: int = 3) -> Attempt:
    row = {"step": 2, "changes": {"ppo.micro_batch_rollouts": 4}, "words": "smaller micro-batches"}
    return start_attempt(folder, read_attempts(folder), stage=stage, iteration=iteration, epoch=7, plan=row)


def attempt(number: int, **facts: object) -> Attempt:
    return Attempt.model_validate({"attempt": number, "stage": "update", "iteration": 3} | facts)


def test_an_attempt_is_on_the_disk_before_it_ends_and_complete_after(tmp_path):
    folder = RunFolder(tmp_path)
    started = begin(folder)
    assert read_attempts(folder) == (started,) and started.outcome is None
    failed = fail_attempt(folder, started, OutOfMemory("no memory"), gave_up=False)
    other = end_attempt(folder, begin(folder), "ok")
    assert read_attempts(folder) == (failed, other)
    assert (failed.attempt, other.attempt) == (1, 2)
    facts = (failed.stage, failed.iteration, failed.epoch, failed.changes, failed.outcome, failed.error_class)
    assert facts == ("update", 3, 7, {"ppo.micro_batch_rollouts": 4}, "error", "out_of_memory")
    assert (failed.error, failed.message) == ("OutOfMemory", "no memory")


def test_a_torn_last_line_is_left_out_and_the_next_row_follows_whole(tmp_path):
    folder = RunFolder(tmp_path)
    first = begin(folder)
    end_attempt(folder, first, "ok")
    whole = folder.ledger.read_bytes()
    for length in range(1, len(whole.split(b"\n")[1]) + 1):
        folder.ledger.write_bytes(whole.split(b"\n")[0] + b"\n" + whole.split(b"\n")[1][:length])
        assert len(read_attempts(folder)) == 1
    folder.ledger.write_bytes(whole[:-10])
    assert read_attempts(folder) == (first,)
    second = begin(folder)
    assert read_attempts(folder) == (first, second)
    assert all(json.loads(line) for line in folder.ledger.read_text().splitlines())


def test_a_ledger_that_is_none_is_refused(tmp_path):
    folder = RunFolder(tmp_path)
    folder.ledger.write_text('{"attempt": 1, "outcome": "ok"}\n')
    with pytest.raises(DataError, match="is not a ledger of attempts"):
        read_attempts(folder)


def test_only_failures_of_the_stage_at_the_step_count_since_it_last_ended_well():
    failed = {"outcome": "error", "error_class": "engine"}
    rows = [
        attempt(1, **failed),
        attempt(2, outcome="ok"),
        attempt(3, **failed),
        attempt(4, outcome="lost"),
        attempt(5, **failed, stage="gate"),
        attempt(6, **failed, iteration=2),
        attempt(7, outcome="interrupted"),
        attempt(8, outcome="error", error_class="data"),
        attempt(9, **failed),
    ]
    assert failures_in_a_row(rows, "update", 3) == 2
    assert [one.attempt for one in attempts_near(rows, "update", 3)] == [1, 2, 3, 4, 7, 8, 9]
    given_up = [*rows, attempt(10, **failed, gave_up=True), attempt(11, **failed)]
    assert failures_in_a_row(given_up, "update", 3) == 1
    assert [one.attempt for one in attempts_near(given_up, "update", 3)] == [11]


def test_an_attempt_without_outcome_is_noticed_once(tmp_path):
    folder = RunFolder(tmp_path)
    end_attempt(folder, begin(folder, iteration=2), "ok")
    begin(folder)
    (lost,) = note_lost(folder, max_lost=1)
    assert lost.attempt == 2
    assert note_lost(folder, max_lost=1) == ()
    assert read_attempts(folder)[1].outcome == "lost"
    (event,) = read_events(folder)
    assert event["kind"] == "orchestrator_lost" and event["iteration"] == 3
    assert "update of iteration 3" in event["message"]


def test_a_process_that_is_lost_too_often_without_progress_fails_for_good(tmp_path):
    folder = RunFolder(tmp_path)
    for _ in range(2):
        begin(folder)
        note_lost(folder, max_lost=2)
    begin(folder, stage="rollouts", iteration=4)
    with pytest.raises(OrchestratorLost, match=r"lost 3 times.*rollouts of iteration 4.*max_lost=2.*max_lost=6"):
        note_lost(folder, max_lost=2)
    with pytest.raises(OrchestratorLost):
        note_lost(folder, max_lost=2)
    note_lost(folder, max_lost=3)


def test_progress_resets_the_count_of_lost_processes(tmp_path):
    lost = [attempt(number, outcome="lost") for number in (1, 2)]
    assert len(lost_without_progress(lost)) == 2
    assert lost_without_progress([*lost, attempt(3, outcome="ok")]) == ()
    assert len(lost_without_progress([*lost, attempt(3, stage="gate", outcome="ok")])) == 2
    failed = fail_attempt(RunFolder(tmp_path), begin(RunFolder(tmp_path)), NumericsError("NaN"), gave_up=True)
    assert len(lost_without_progress([*lost, failed, attempt(4)])) == 3
