"""Nothing of a local Ray is left when the process that started it is killed, or leaves it."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from tests.e2e.conftest import ROOT
from tests.faults.injection import wait_until

_USER = """
import sys, time
from pathlib import Path
import ray
from rlhf_core.workers.local_ray import connect, disconnect
from tests.rlhf_core.engines.trainer_case import run_config

connect(run_config(Path(sys.argv[1]), cluster={"engine": "ray", "ranks": 2}))
actor = ray.remote(type("Actor", (), {"answer": lambda self: 1})).remote()
ray.get(actor.answer.remote())
print("up", flush=True)
sys.stdin.readline()
disconnect()
print("left", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("way", ["killed", "disconnects"])
def test_nothing_of_a_local_ray_is_left(tmp_path, way):
    user = subprocess.Popen(
        [sys.executable, "-c", _USER, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert user.stdout is not None and user.stdout.readline() == "up\n"
        time.sleep(1)  # the guardian looks twice a second
        belonging = psutil.Process(user.pid).children(recursive=True)
        names = {process.name() for process in belonging}
        assert "raylet" in names and any(name.startswith("ray::Dashboard") for name in names), names
        if way == "disconnects":
            leave(user)
        else:
            user.kill()
        wait_until(lambda: not alive(belonging), seconds=10, what=lambda: f"all have ended; now {alive(belonging)}")
    finally:
        user.kill()
        user.communicate()


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended; where process 1 reaps nobody they stay as zombies."""
    living: list[psutil.Process] = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living


def leave(user: subprocess.Popen[str]) -> None:
    assert user.stdin is not None and user.stdout is not None
    user.stdin.write("leave\n")
    user.stdin.flush()
    assert user.stdout.readline() == "left\n"
