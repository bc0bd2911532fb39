"""SIGKILL at random instants while checkpoints are saved, one after the other (F1).

A few kills in the whole suite, 20 by `make faults`, more by RLHF_KILLS.
"""

from __future__ import annotations

import os
import random
import time

import pytest

from rlhf_core.checkpoints.records import read_registry
from rlhf_core.checkpoints.registry import Registry
from rlhf_core.checkpoints.verify import verify_checkpoint
from rlhf_core.recovery.lock import acquire_lock
from rlhf_core.runtime import stored_config
from tests.rlhf_core.checkpoints.saving import PROCESSES, save_for_ever

KILLS = int(os.environ.get("RLHF_KILLS", "5"))


@pytest.mark.faults("SIGKILL at random instants while saving")
@pytest.mark.timeout(60 * max(5, KILLS))
def test_a_kill_at_any_instant_leaves_the_last_reported_checkpoint_or_a_newer_one_whole(run_folder, tmp_path, measured):
    report, generator = tmp_path / "report", random.Random(1)
    report.write_text("2\n")
    for kill in range(KILLS):
        reported = len(report.read_text().split())
        process = PROCESSES.Process(target=save_for_ever, args=(run_folder.path, report))
        process.start()
        deadline = time.monotonic() + 120
        while len(report.read_text().split()) <= reported + 1:  # until it has saved one
            assert process.is_alive() and time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(generator.uniform(0.0, 0.8))
        process.kill()
        process.join()

        last = int(report.read_text().split()[-1])
        whole = read_registry(run_folder)
        assert whole.current is not None and whole.current.step >= last
        lock = acquire_lock(run_folder)
        registry = Registry(run_folder, lock)
        used = registry.usable_current()
        assert used is not None and used.step >= last, kill
        verify_checkpoint(used.path, stored_config(run_folder.path).model)
        assert not [step for step, entry in registry.state.checkpoints.items() if entry.status == "damaged"]
        lock.release()
        left = {path.name for path in run_folder.checkpoints.iterdir() if not path.name.startswith("step-")}
        assert left == {"REGISTRY.json"}
    measured(f"{KILLS} kills")
    assert int(report.read_text().split()[-1]) > 2
