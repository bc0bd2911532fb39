"""The deployment as an operator uses it: a server, `prefect deploy`, a worker, `prefect deployment run --watch`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from flows.server import STATE_FILE
from tests.e2e.conftest import ROOT
from tests.flows.tiny_run import settings, write_config
from tests.tiny_model import make_tiny_world

PREFECT = [sys.executable, "-m", "prefect"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_deployed_run_completes_on_a_worker(own_server, tmp_path):
    world = make_tiny_world(tmp_path / "world")
    config = write_config(tmp_path, settings(world, Path("runs"), rounds=1, evaluation={"held_out_rollouts": 8}))
    api_url = json.loads((Path(own_server["PREFECT_HOME"]) / STATE_FILE).read_text())["api_url"]
    environment = own_server | {"PREFECT_API_URL": api_url, "PREFECT_WORKER_QUERY_SECONDS": "1"}
    home = tmp_path / "runs"
    call(environment, "work-pool", "create", "rlhf", "--type", "process", "--overwrite")
    with background(environment, tmp_path / "worker.log", "worker", "start", "--pool", "rlhf", "--limit", "1"):
        call(environment, "deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
        schedules = httpx.get(f"{api_url}/deployments/name/post-training/smollm2-hh").json()["schedules"]
        assert [schedule["active"] for schedule in schedules] == [False], "schedules are shipped inactive"
        watched = call(
            environment,
            *("deployment", "run", "post-training/quickstart", "--watch"),
            *("--param", f"config={config}", "--param", f'overrides=["home={home}"]'),
        )
    assert "Completed" in watched
    (report,) = home.glob("tiny-*/report.html")
    assert report.stat().st_size > 10_000


@contextmanager
def background(environment: dict[str, str], log: Path, *arguments: str) -> Generator[subprocess.Popen[bytes]]:
    """A Prefect process in its own group; the whole group is ended afterwards."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*PREFECT, *arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(30)


def call(environment: dict[str, str], *arguments: str) -> str:
    """The output of a Prefect command that must succeed."""
    done = subprocess.run(
        [*PREFECT, *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, f"prefect {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr
