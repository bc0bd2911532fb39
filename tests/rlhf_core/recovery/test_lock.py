"""A run has one owner."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlhf_core.data.store import RunFolder
from rlhf_core.errors import RunLocked
from rlhf_core.recovery.lock import acquire_lock

HOLD = """
import sys, time
from pathlib import Path
from rlhf_core.data.store import RunFolder
from rlhf_core.recovery.lock import acquire_lock
lock = acquire_lock(RunFolder(Path(sys.argv[1])))
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.faults("a second owner, then the death of the first")
def test_a_second_owner_is_refused_and_told_who_the_first_is_until_that_one_dies(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder.path)], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None and first.stdout.readline().strip() == "held"
        with pytest.raises(RunLocked, match=f"process {first.pid}"):
            acquire_lock(folder)
        first.kill()
        first.wait()
    lock = acquire_lock(folder)
    assert lock.epoch == 2
    lock.release()


def test_an_owner_that_was_overtaken_may_not_commit(tmp_path):
    folder = RunFolder(tmp_path / "run")
    stale = acquire_lock(folder)
    stale.require_ownership()
    stale.release()
    fresh = acquire_lock(folder)
    with pytest.raises(RunLocked, match="now belongs to"):
        stale.require_ownership()
    fresh.require_ownership()
    fresh.release()
