"""The flow's own process is killed or told to end: nothing of it stays, and `rlhf resume` gives the same numbers."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from rlhf_core.data.store import RunFolder
from rlhf_core.errors import RunLocked
from rlhf_core.recovery.ledger import read_attempts
from rlhf_core.reporting.status import run_status
from tests.faults.injection import ray_settings, wait_until
from tests.faults.processes import marked, started, wait_for
from tests.flows.tiny_run import write_config

pytestmark = [pytest.mark.long_fault, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("number", "outcome"),
    [
        pytest.param(
            signal.SIGKILL, None, marks=pytest.mark.faults("SIGKILL of the flow's process in an update by Ray ranks")
        ),
        pytest.param(
            signal.SIGTERM,
            "interrupted",
            marks=pytest.mark.faults("SIGTERM of the flow's process (pre-emption) in an update by Ray ranks"),
        ),
    ],
)
def test_the_flow_process_ends(own_server, undisturbed, tmp_path, measured, number, outcome):
    home, log, mark = tmp_path / "runs", tmp_path / "log", f"fault-{tmp_path.name}-{time.time_ns()}"
    config, folder = write_config(tmp_path, ray_settings(undisturbed.world, home)), RunFolder(home / "tiny")
    with started(own_server | {"RLHF_TEST_MARK": mark}, log, "run", config) as process:
        wait_for(folder.iteration(2) / "experience" / "MANIFEST.json", process, log)
        wait_until(lambda: is_in_an_update(folder), seconds=60, what="the update has begun")
        ranks = [command for command in marked(mark).values() if "RankActor" in command]
        assert len(ranks) == 2, marked(mark)
        process.send_signal(number)
        process.wait(60)
    assert process.returncode != 0
    seconds = wait_until(lambda: not marked(mark), seconds=30, what=lambda: f"nothing of it runs; now {marked(mark)}")
    measured(f"all its processes gone after {seconds:.1f} s")
    assert read_attempts(folder)[-1].outcome == outcome
    assert not (folder.checkpoints / "step-000002").exists(), "too late to show anything"
    resume(own_server, folder, log)
    undisturbed.require_same(folder)


@pytest.mark.faults("a second process on the run while the first works, then a lock of a dead one")
def test_a_second_process_is_refused_and_the_first_goes_on(own_server, undisturbed, tmp_path):
    home, log, other = tmp_path / "runs", tmp_path / "log", tmp_path / "second.log"
    config, folder = write_config(tmp_path, ray_settings(undisturbed.world, home)), RunFolder(home / "tiny")
    with started(own_server, log, "run", config) as first:
        wait_for(folder.iteration(1) / "rollouts", first, log)
        with started(own_server, other, "resume", folder.path) as second:
            second.wait(120)
        assert first.poll() is None, "the first one must still be at work"
        assert second.returncode == RunLocked.exit_code and "is in use by process" in other.read_text()
        assert first.wait(240) == 0, log.read_text()
    undisturbed.require_same(folder)


def is_in_an_update(folder: RunFolder) -> bool:
    last = read_attempts(folder)[-1]
    return (last.stage, last.iteration, last.outcome) == ("update", 2, None)


def resume(environment: dict[str, str], folder: RunFolder, log: Path) -> None:
    with started(environment, log, "resume", folder.path) as process:
        assert process.wait(300) == 0, log.read_text()
    assert run_status(folder).state == "finished"
