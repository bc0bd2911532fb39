"""What stands on the terminal when a run cannot be: one message, its exit code, no traceback."""

from __future__ import annotations

import socket
import subprocess
import time

import pytest

from tests.e2e.conftest import RLHF, ROOT
from tests.flows.tiny_run import settings, write_config
from tests.tiny_model import TinyWorld, make_tiny_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    return make_tiny_world(tmp_path_factory.mktemp("world"))


def rlhf(environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*RLHF, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False)


def test_bad_data_are_one_message_on_the_terminal(own_server, world, tmp_path):
    config = write_config(tmp_path, settings(world, tmp_path / "runs"))
    done = rlhf(own_server, "run", config, "--set", "data.prompts.0.path=gone.jsonl")
    assert done.returncode == 3
    message = f"'gone.jsonl' is missing: there is no {world.data}/gone.jsonl"
    assert done.stderr.count(message) == 1
    assert done.stderr.splitlines()[-1].startswith(f"error (DataError): {message}")
    assert "Traceback" not in done.stderr
    failed = rlhf(own_server, "status", tmp_path / "runs" / "tiny")
    assert failed.returncode == 0 and "failed" in failed.stdout


def test_a_debugger_still_gets_the_traceback(own_server, tmp_path):
    done = rlhf(own_server | {"RLHF_DEBUG": "1"}, "resume", tmp_path)
    assert "RunFolderError: " in done.stderr and "Traceback" in done.stderr


def test_a_server_that_does_not_answer_is_told_quickly_and_before_any_work(own_server, world, tmp_path):
    config = write_config(tmp_path, settings(world, tmp_path / "runs"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}/api"
    began = time.monotonic()
    done = rlhf(own_server | {"PREFECT_API_URL": address}, "run", config)
    assert done.returncode == 10
    assert time.monotonic() - began < 60
    assert done.stderr.startswith(f"error (ServerError): the Prefect server at {address} does not answer")
    assert done.stderr.count("\n") == 1 and "PREFECT_API_URL" in done.stderr
    assert not (tmp_path / "runs").exists()
