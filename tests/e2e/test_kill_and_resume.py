"""A run that is killed in the middle of an update's iteration comes home with the numbers of one that was not."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

from examples.without_prefect import run as run_without_prefect
from rlhf_core.data.events import read_events
from rlhf_core.data.store import RunFolder, file_sha256
from rlhf_core.recovery.ledger import read_attempts
from rlhf_core.reporting.report import write_report
from rlhf_core.reporting.status import run_status
from tests.e2e.conftest import RLHF, ROOT
from tests.flows.tiny_run import require_same_numbers, settings, write_config
from tests.tiny_model import make_tiny_world


@pytest.mark.faults("SIGKILL of a run of one process in an iteration")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_run_is_resumed_to_the_same_numbers(own_server, tmp_path):
    world = make_tiny_world(tmp_path / "world")
    home = tmp_path / "runs"
    config = write_config(tmp_path, settings(world, home, rounds=1, iterations_per_round=3))
    folder = RunFolder(home / "tiny")

    kill_in_the_middle(own_server, config, folder)
    assert (folder.metrics / "metrics.jsonl").read_text().count("\n") == 1
    # How far it came between the look and the kill is the machine's affair.
    assert re.search(r"iteration 2: (rollouts|scored|validated|experience) done", run_status(folder).stage)
    assert write_report(folder).stat().st_size > 10_000
    lost = [one for one in read_attempts(folder) if one.outcome is None]
    assert len(lost) <= 1, "one process, one attempt at a time; none where the kill came between two stages"

    resumed = rlhf(own_server, "resume", folder.path)
    assert f"best policy: {folder.best}" in resumed.stdout
    assert run_status(folder).state == "finished"
    assert [event["kind"] for event in read_events(folder)].count("orchestrator_lost") == len(lost)
    assert ("1 lost with their process" in run_status(folder).attempts) == bool(lost)
    uninterrupted = RunFolder(tmp_path / "alone" / "tiny")
    run_without_prefect(str(config), [f"home={uninterrupted.path.parent}"])
    require_same_numbers(folder.path, uninterrupted.path, iterations=3)
    weights = "step-000003/policy/model.safetensors"
    assert file_sha256(folder.checkpoints / weights) == file_sha256(uninterrupted.checkpoints / weights)
    assert not processes_that_name(home)


def kill_in_the_middle(environment: dict[str, str], config: Path, folder: RunFolder) -> None:
    """Start the run and kill it without warning when iteration 2 has its rollouts and nothing more."""
    log = config.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*RLHF, "run", str(config)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    deadline = time.monotonic() + 240
    while not (folder.iteration(2) / "rollouts").exists():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.005)
    process.kill()
    process.wait(30)
    assert not (folder.checkpoints / "step-000002").exists(), "killed too late to show anything"


def rlhf(environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    """A command that must succeed."""
    done = subprocess.run(
        [*RLHF, *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done


def processes_that_name(path: Path) -> list[str]:
    """Command lines of living processes in which the path stands."""
    found: list[str] = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        if str(path) in line:
            found.append(line)
    return found
