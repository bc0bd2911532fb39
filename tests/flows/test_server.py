"""The server that a run reports to."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, get_current_settings, temporary_settings

from flows.launch import launch
from flows.server import STATE_FILE, ensure_server, stop_server
from rlhf_core.errors import ServerError
from tests.flows.tiny_run import settings, write_config


def test_an_unreachable_server_is_refused_with_what_to_do_before_any_work(world, tmp_path):
    config = write_config(tmp_path, settings(world, tmp_path / "runs"))
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}),
        pytest.raises(ServerError, match=r"127\.0\.0\.1:9/api does not answer.*PREFECT_API_URL"),
    ):
        launch(str(config))
    assert ServerError.exit_code == 10
    assert not (tmp_path / "runs").exists()


def test_a_configured_server_that_answers_is_used():
    said: list[str] = []
    server = ensure_server(said.append)
    assert server.api_url == get_current_settings().api.url
    assert server.pid is None
    assert said == [f"Prefect UI: {server.ui_url}"]


def test_a_local_server_is_started_once_reused_and_stopped(tmp_path):
    """In a process of its own: this one already has a server. The usual port is taken, which the page must bear."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= {"PREFECT_HOME": str(tmp_path), "PREFECT_PROFILES_PATH": str(tmp_path / "profiles.toml")}
    script = (
        "from flows.server import ensure_server, stop_server\n"
        "import httpx\n"
        "first, second = ensure_server(), ensure_server()\n"
        "asks = httpx.get(first.ui_url + '/ui-settings').json()['api_url']\n"
        "print('SAME', first == second, first.api_url, asks, stop_server(), stop_server())\n"
    )
    command = [sys.executable, "-c", script]
    with socket.socket() as other:
        with contextlib.suppress(OSError):  # it is taken already
            other.bind(("127.0.0.1", 4200))
            other.listen()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    verdict = done.stdout.splitlines()[-1].split()
    assert verdict[:2] == ["SAME", "True"]
    assert verdict[2].startswith("http://127.0.0.1:")
    assert verdict[3] == verdict[2], "the page asks another server than the one that serves it"
    assert verdict[4:] == ["True", "False"]
    assert "rlhf server stop" in done.stdout


def test_a_state_file_of_a_dead_server_is_not_believed(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    state = {"api_url": "http://127.0.0.1:9/api", "ui_url": "http://127.0.0.1:9", "pid": gone.pid}
    (tmp_path / STATE_FILE).write_text(json.dumps(state))
    said: list[str] = []
    with temporary_settings({PREFECT_HOME: tmp_path}):
        assert not stop_server(said.append)
    assert said == ["no local Prefect server of this project is running"]
    assert not (tmp_path / STATE_FILE).exists()
