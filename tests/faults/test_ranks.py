"""A rank that dies, hangs or fails: the flow notices within seconds, tries again, and ends with the same numbers."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from flows.post_training import post_training
from rlhf_core.data.store import RunFolder
from rlhf_core.errors import EngineError, RlhfError, Stalled, WorkerLost
from rlhf_core.workers import ray_group
from rlhf_core.workers.local_ray import disconnect
from rlhf_core.workers.ray_group import RayWorkers
from tests.faults.injection import (
    Blow,
    RaisesInAnUpdate,
    Undisturbed,
    alive,
    failures,
    ray_settings,
    send,
    strike,
    wait_until,
)
from tests.flows.tiny_run import write_config
from tests.rlhf_core.engines.trainer_case import CONTROL, learnt_from, ppo, random_rollouts, run_config

pytestmark = pytest.mark.timeout(400)


def comes_home(undisturbed: Undisturbed, home: Path, blow: Blow, error: type[RlhfError], **cluster: float) -> str:
    """Run the flow under the blow; the stage that failed once."""
    content = ray_settings(undisturbed.world, home, cluster=cluster)
    post_training(config=str(write_config(home, content)))
    folder = RunFolder(home / "tiny")
    assert isinstance(blow.error, error), blow.error
    (failed,) = failures(folder)
    assert (failed.error, failed.iteration) == (error.__name__, 2)
    undisturbed.require_same(folder)
    wait_until(lambda: not alive(blow.pids), seconds=10, what="all of the lost group's processes are gone")
    return failed.stage


@pytest.mark.long_fault
@pytest.mark.faults("SIGKILL of a rank in the middle of an update")
def test_a_rank_killed_in_an_update(prefect_server, undisturbed, tmp_path, monkeypatch, measured):
    blow = strike(monkeypatch, send(signal.SIGKILL, 1), during="update")
    assert comes_home(undisturbed, tmp_path, blow, WorkerLost) == "update"
    measured(f"noticed after {blow.seconds_to_notice:.1f} s")
    assert blow.seconds_to_notice < 10


@pytest.mark.long_fault
@pytest.mark.faults("SIGKILL of a generating process during rollouts")
def test_a_rank_killed_in_rollouts(prefect_server, undisturbed, tmp_path, monkeypatch, measured):
    blow = strike(monkeypatch, send(signal.SIGKILL, 0), during="generate")
    assert comes_home(undisturbed, tmp_path, blow, WorkerLost) == "rollouts"
    measured(f"noticed after {blow.seconds_to_notice:.1f} s")
    assert blow.seconds_to_notice < 10


@pytest.mark.long_fault
@pytest.mark.faults("SIGSTOP of a rank in the middle of an update (cluster.stall_seconds=10)")
def test_a_rank_that_hangs(prefect_server, undisturbed, tmp_path, monkeypatch, measured):
    blow = strike(monkeypatch, send(signal.SIGSTOP, 1), during="update")
    assert comes_home(undisturbed, tmp_path, blow, Stalled, stall_seconds=10) == "update"
    assert "rank 1 does not answer" in str(blow.error)
    measured(f"noticed after {blow.seconds_to_notice:.1f} s")
    assert blow.seconds_to_notice < 10 + 10


@pytest.mark.long_fault
@pytest.mark.faults("one rank of two raises while the other waits for it in a collective (C07)")
def test_case_C07_the_others_do_not_wait_for_a_rank_that_raised(world, monkeypatch, measured):
    monkeypatch.setattr(ray_group, "RankActor", RaisesInAnUpdate)
    config = run_config(world.model, ppo=ppo(), cluster={"engine": "ray", "ranks": 2, "zero_stage": 1})
    workers = RayWorkers(config)
    try:
        pids = [pid for _, pid in workers.processes()]
        rollouts = random_rollouts()
        said = workers.evaluate_rollouts(rollouts)
        experience = learnt_from(rollouts, said, said.values, said.values)
        began = time.monotonic()
        with pytest.raises(EngineError, match="a fault of one rank"):
            workers.update(experience, [], CONTROL, iteration=1, seed=1)
        seconds = time.monotonic() - began
        assert config.cluster.collective_seconds >= 600, "waiting for the collective's own limit would take minutes"
        assert seconds < 10
        measured(f"noticed after {seconds:.1f} s")
        wait_until(lambda: not alive(pids), seconds=10, what="both ranks are gone")
    finally:
        workers.close()
        disconnect()
