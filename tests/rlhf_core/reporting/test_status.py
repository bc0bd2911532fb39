"""Status of a run at a glance."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from rlhf_core.data.events import record_event
from rlhf_core.data.store import RunFolder, StageKey, finish_stage, stage_folder
from rlhf_core.errors import OutOfMemory
from rlhf_core.recovery.ledger import Attempt, end_attempt, fail_attempt, read_attempts, start_attempt
from rlhf_core.reporting.status import RunStatus, render_status, run_status
from tests.rlhf_core.reporting.run_folder import make_run


def shown(status: RunStatus) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render_status(status))
    return console.export_text()


def test_a_finished_run_shows_its_last_numbers_and_its_best_checkpoint(tmp_path: Path):
    status = run_status(make_run(tmp_path / "run", rounds=2, per_round=2))
    assert (status.state, status.iteration, status.iterations, status.stage) == ("finished", 4, 4, "gate 2 decided")
    assert status.best == 4 and status.promoted == (4,)
    text = shown(status)
    assert "4 of 4" in text and "continue: gate passed" in text and "4 (best)" in text


def test_a_running_iteration_names_its_last_finished_stage(tmp_path: Path):
    folder = make_run(tmp_path / "run", rounds=2, per_round=2, done=1)
    with stage_folder(folder.iteration(2) / "rollouts") as partial:
        finish_stage(partial, StageKey("rollouts", {}, {}), rows=0, metrics={})
    assert run_status(folder).stage == "iteration 2: rollouts done"


def test_attempts_are_counted_and_the_settings_in_force_named(tmp_path: Path):
    folder = make_run(tmp_path / "run", rounds=1, per_round=1, done=0)
    assert run_status(folder).attempts == "0, none failed"
    plan = {"step": 1, "changes": {}, "words": "retry step 1: [the same] settings"}
    fail_attempt(folder, begin(folder, {}), OutOfMemory("no memory"), gave_up=False)
    end_attempt(folder, begin(folder, {}), "lost")
    begin(folder, plan)
    told = "3, 1 failed, 1 lost with their process; last: update of iteration 3, retry step 1: [the same] settings"
    assert run_status(folder).attempts == told and told in shown(run_status(folder))


def begin(folder: RunFolder, plan: dict[str, Any]) -> Attempt:
    return start_attempt(folder, read_attempts(folder), stage="update", iteration=3, epoch=1, plan=plan)


def test_markup_in_events_is_shown_as_it_is(tmp_path: Path):
    folder = make_run(tmp_path / "run", rounds=1, per_round=1, done=0)
    record_event(folder, "failure", "broken [red]here[/red] [/nothing]")
    status = run_status(folder)
    assert status.state == "failed"
    assert "broken [red]here[/red] [/nothing]" in shown(status)


def test_an_empty_folder_has_a_status(tmp_path: Path):
    status = run_status(RunFolder(tmp_path))
    assert status.state == "not started" and "none yet" in shown(status)
