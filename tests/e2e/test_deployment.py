"""The deployment as an operator uses it: a server, `prefect deploy`, a worker, `prefect deployment run --watch`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.flows.tiny_run import settings, write_config
from tests.tiny_model import make_tiny_world

ROOT = Path(__file__).parents[2]
PREFECT = [sys.executable, "-m", "prefect"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_deployed_run_completes_on_a_worker(tmp_path):
    world = make_tiny_world(tmp_path / "world")
    config = write_config(tmp_path, settings(world, Path("runs"), rounds=1))
    environment = isolated_environment(tmp_path)
    home = tmp_path / "runs"
    with server(environment, tmp_path):
        call(environment, "work-pool", "create", "rlhf", "--type", "process", "--overwrite")
        call(environment, "deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
        schedules = call(environment, "deployment", "schedule", "ls", "post-training/smollm2-hh")
        assert "False" in schedules, "schedules are shipped inactive"
        with background(environment, tmp_path / "worker.log", "worker", "start", "--pool", "rlhf", "--limit", "1"):
            watched = call(
                environment,
                *("deployment", "run", "post-training/quickstart", "--watch"),
                *("--param", f"config={config}", "--param", f'overrides=["home={home}"]'),
            )
    assert "Completed" in watched
    (report,) = home.glob("tiny-*/report.html")
    assert report.stat().st_size > 10_000


def isolated_environment(folder: Path) -> dict[str, str]:
    """Prefect settings of its own, so that a person's server and profile are not touched."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mine = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return mine | {
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "DO_NOT_TRACK": "1",
        "NO_COLOR": "1",
        "COLUMNS": "200",
        "PYTHONPATH": str(ROOT),
    }


@contextmanager
def server(environment: dict[str, str], folder: Path) -> Generator[None]:
    """A Prefect server that answers."""
    with background(environment, folder / "server.log", "server", "start", "--host", "127.0.0.1") as process:
        deadline = time.monotonic() + 180
        while True:
            try:
                urlopen(environment["PREFECT_API_URL"] + "/health", timeout=5).close()
                break
            except (URLError, OSError) as error:
                assert process.poll() is None, (folder / "server.log").read_text()
                assert time.monotonic() < deadline, f"the server does not answer: {error}"
                time.sleep(0.3)
        yield


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
