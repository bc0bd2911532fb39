"""A machine of two is lost in the middle of an update: noticed in seconds; the run goes on once it has room."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from flows.post_training import post_training
from rlhf_core.data.store import RunFolder
from rlhf_core.errors import WorkerLost
from rlhf_core.workers.local_ray import disconnect
from tests.faults.injection import alive, failures, ray_settings, strike
from tests.flows.tiny_run import write_config

pytestmark = [pytest.mark.long_fault, pytest.mark.timeout(500)]
AWAY_SECONDS = 10.0


@contextmanager
def two_machines(*, cores_of_the_first: int) -> Generator[Cluster]:
    """A Ray cluster whose machines each have a raylet of their own, all of them on this computer."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cores_of_the_first})
    try:
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        disconnect()
        cluster.shutdown()


@contextmanager
def ended(processes: list[subprocess.Popen[bytes]]) -> Generator[None]:
    """What was started on the way is over afterwards."""
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.wait(60)


def lose_one(cluster: Cluster, ranks: list[int]) -> None:
    """Kill the second machine's raylet and the rank on it, as when the power goes."""
    (machine,) = [node for node in cluster.list_all_nodes() if node != cluster.head_node]
    raylet = machine.all_processes["raylet"][0].process.pid
    of_it = [pid for pid in ranks if _parent(pid) == raylet]
    assert len(of_it) == 1, "each machine has one rank"
    cluster.remove_node(machine, allow_graceful=False)
    for pid in alive(of_it):
        os.kill(pid, signal.SIGKILL)


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rsplit(")", 1)[1].split()[1])


@pytest.mark.parametrize(
    "comes_back",
    [
        pytest.param(True, marks=pytest.mark.faults("a machine of two lost in an update, back after a while")),
        pytest.param(False, marks=pytest.mark.faults("a machine of two lost in an update; the other one has room")),
    ],
)
def test_a_lost_machine(
    prefect_server, undisturbed, tmp_path, monkeypatch, measured: Callable[[str], None], comes_back
):
    returned: list[subprocess.Popen[bytes]] = []
    with two_machines(cores_of_the_first=1 if comes_back else 2) as cluster, ended(returned):

        def fall(_: Any, ranks: list[int]) -> None:
            lose_one(cluster, ranks)
            if comes_back:
                threading.Thread(target=return_later, daemon=True).start()

        def return_later() -> None:
            time.sleep(AWAY_SECONDS)
            # By a command: Ray's own Node takes signals for itself, which only the main thread may do.
            join = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={cluster.address}"]
            returned.append(subprocess.Popen([*join, "--num-cpus=1", "--block"], stdin=subprocess.DEVNULL))

        blow = strike(monkeypatch, fall, during="update")
        place = {"address": cluster.address, "placement": "spread", "start_seconds": 120.0}
        post_training(config=str(write_config(tmp_path, ray_settings(undisturbed.world, tmp_path, cluster=place))))
    folder = RunFolder(tmp_path / "tiny")
    assert isinstance(blow.error, WorkerLost), blow.error
    measured(f"noticed after {blow.seconds_to_notice:.1f} s")
    assert blow.seconds_to_notice < 10
    assert [(one.stage, one.error_class) for one in failures(folder)] == [("update", "worker_lost")]
    undisturbed.require_same(folder)
