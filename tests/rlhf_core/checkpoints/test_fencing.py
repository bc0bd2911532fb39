"""Two owners of one run: the one that was overtaken changes nothing, at whatever instant it was overtaken (F1)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from rlhf_core.checkpoints.registry import Registry
from rlhf_core.checkpoints.stage import start_policy
from rlhf_core.checkpoints.verify import verify_checkpoint
from rlhf_core.data.store import RunFolder
from rlhf_core.errors import RunLocked
from rlhf_core.recovery.lock import RunLock, acquire_lock
from rlhf_core.runtime import close_runtime, open_runtime, stored_config
from tests.rlhf_core.checkpoints.saving import PROCESSES, save_next, stop_between_look_and_rename


def as_on_another_host(folder: RunFolder) -> None:
    """Put another file in the lock's place: whoever opens it next does not see who holds the old one locked."""
    content = folder.lock.read_bytes()
    folder.lock.unlink()
    folder.lock.write_bytes(content)


def overtake_after_the_look(lock: RunLock) -> list[RunLock]:
    """From now on another owner takes the run in the instant between the look and the rename."""
    look, owners = lock.require_ownership, []

    def look_and_lose() -> None:
        look()
        lock.require_ownership = look  # type: ignore[method-assign]
        as_on_another_host(lock.folder)
        owners.append(acquire_lock(lock.folder))

    lock.require_ownership = look_and_lose  # type: ignore[method-assign]
    return owners


def wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + 120
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.faults("SIGSTOP of the run's owner, and a second one")
def test_a_stopped_owner_keeps_others_out_and_once_overtaken_commits_nothing(run_folder):
    here, there = PROCESSES.Pipe()
    stopped = PROCESSES.Process(target=stop_between_look_and_rename, args=(run_folder.path, there))
    stopped.start()
    try:
        wait_until_stopped(stopped.pid)
        with pytest.raises(RunLocked, match=rf"in use by process {stopped.pid} on \S+ since \d{{4}}-"):
            acquire_lock(run_folder)

        as_on_another_host(run_folder)
        runtime = open_runtime(run_folder.path)
        mine = save_next(runtime, start_policy(runtime))
        after = {path: path.read_bytes() for path in run_folder.checkpoints.rglob("*") if path.is_file()}

        os.kill(stopped.pid, signal.SIGCONT)
        assert here.poll(60)
        said = here.recv()
        assert said.startswith("RunLocked: ") and f"now belongs to process {os.getpid()}" in said
        assert {path: path.read_bytes() for path in run_folder.checkpoints.rglob("*") if path.is_file()} == after
        verify_checkpoint(mine.path, runtime.config.model)
        assert save_next(runtime, mine).step == 4
    finally:
        close_runtime(run_folder.path)
        stopped.kill()
        stopped.join()


@pytest.mark.faults("a stale lock of a dead process")
def test_an_owner_that_died_is_followed_at_once_whatever_the_lock_file_says(run_folder):
    for content in (b"", b"{", b"[]", b'{"epoch": 7, "pid": 1, "host": "gone", "since": "2020-01-01"}'):
        run_folder.lock.write_bytes(content)
        lock = acquire_lock(run_folder)
        lock.require_ownership()
        lock.release()
    assert lock.epoch == 8


def test_a_registry_that_is_overtaken_between_look_and_rename_is_not_written(run_folder):
    stale = acquire_lock(run_folder)
    before = (run_folder.checkpoints / "REGISTRY.json").read_bytes()
    owners = overtake_after_the_look(stale)
    with pytest.raises(RunLocked, match="now belongs to"):
        Registry(run_folder, stale).set_score(1, 0.5)
    assert (run_folder.checkpoints / "REGISTRY.json").read_bytes() == before
    with pytest.raises(RunLocked, match="now belongs to"):
        Registry(run_folder, stale).set_score(1, 0.5)
    Registry(run_folder, owners[0]).set_score(1, 0.7)
    assert Registry(run_folder).entry(1).score == 0.7
    owners[0].release()


def test_a_checkpoint_that_is_overtaken_between_look_and_rename_is_not_put_in_place(run_folder):
    runtime = open_runtime(run_folder.path)
    start = start_policy(runtime)
    owners = overtake_after_the_look(runtime.lock)
    with pytest.raises(RunLocked, match="now belongs to"):
        save_next(runtime, start)
    left = {path.name for path in run_folder.checkpoints.iterdir()}
    assert left == {"REGISTRY.json", "step-000000", "step-000001", "step-000002"}
    close_runtime(run_folder.path)
    owners[0].release()


def test_a_commit_before_the_takeover_is_seen_by_the_new_owner(run_folder):
    runtime = open_runtime(run_folder.path)
    saved = save_next(runtime, start_policy(runtime))
    as_on_another_host(run_folder)
    owner = acquire_lock(run_folder)
    assert Registry(run_folder, owner).current() == saved
    verify_checkpoint(saved.path, stored_config(run_folder.path).model)
    close_runtime(run_folder.path)
    owner.release()
