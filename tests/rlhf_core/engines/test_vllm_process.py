"""Starting and ending a server, with a small one in vLLM's place."""

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from rlhf_core.config.rollout import RolloutConfig
from rlhf_core.data.store import write_json
from rlhf_core.engines import vllm_process
from rlhf_core.engines.vllm_process import Launch, VllmProcess, command_of, environment_of, model_len
from rlhf_core.errors import ConfigError, EngineError

SERVER = """
import os, signal, socket, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
port, mode = int(sys.argv[sys.argv.index("--port") + 1]), os.environ.get("FAKE_MODE", "")
if mode == "broken":
    sys.exit("no such model here")
if mode == "silent":
    time.sleep(600)
if mode == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", stubborn])
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_): pass
print("up", flush=True)
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """A launch whose environment's Python runs the small server instead of vLLM."""
    environment = tmp_path / "environment"
    package = environment / "lib" / "python3.11" / "site-packages" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (environment / "bin").mkdir()
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    python = environment / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    python.chmod(0o755)
    write_json(tmp_path / "model" / "config.json", {"max_position_embeddings": 128})
    monkeypatch.setattr(vllm_process, "_GRACE_SECONDS", 1.0)
    rollout = RolloutConfig.model_validate(
        {"engine": "vllm", "vllm": {"environment": environment, "start_seconds": 60}}
    )
    return Launch(rollout, tmp_path / "model", tmp_path / "logs")


def members(group: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(folder.name))
    return found


def wait_until_gone(group: int) -> None:
    deadline = time.monotonic() + 20
    while (left := members(group)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


@pytest.mark.parametrize("mode", ["", "deaf"])
def test_closing_ends_the_server_and_its_children_also_where_they_do_not_listen(mode, launch, monkeypatch):
    monkeypatch.setenv("FAKE_MODE", mode)
    process = VllmProcess(launch)
    assert process.is_alive and len(members(process.group)) == 3
    process.close()
    assert not process.is_alive
    wait_until_gone(process.group)
    process.close()


def test_a_stopped_server_is_ended_too(launch):
    process = VllmProcess(launch)
    for pid in members(process.group):
        if pid != process.group:
            os.kill(pid, signal.SIGSTOP)
    process.close()
    wait_until_gone(process.group)


@pytest.mark.parametrize("victim", ["server", "guardian"])
def test_when_a_part_is_killed_the_rest_ends(victim, launch):
    process = VllmProcess(launch)
    group = process.group
    server = next(pid for pid in members(group) if parent(pid) == group)
    os.kill(group if victim == "guardian" else server, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while process.is_alive and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not process.is_alive
    if victim == "server":
        wait_until_gone(group)
    process.close()
    wait_until_gone(group)


def parent(pid: int) -> int:
    return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])


def test_nothing_is_left_when_the_run_is_killed(tmp_path):
    guardian = [sys.executable, "-I", "-S", str(vllm_process.SIDE / "guardian.py")]
    code = (
        "import os, subprocess, sys, time\n"
        f"command = [*{guardian!r}, str(os.getpid()), '1', sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "print(subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL).pid, flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        group = int(owner.stdout.readline())
        deadline = time.monotonic() + 20
        while len(members(group)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(members(group)) == 2
        owner.kill()
        owner.wait()
    wait_until_gone(group)


def test_a_server_that_ends_at_once_is_quoted(launch, monkeypatch):
    monkeypatch.setenv("FAKE_MODE", "broken")
    with pytest.raises(EngineError, match=r"ended while it started.*vllm-001\.log:\n.*no such model here") as caught:
        VllmProcess(launch)
    assert caught.value.transient


def test_a_server_that_never_answers_is_ended(launch, monkeypatch):
    monkeypatch.setenv("FAKE_MODE", "silent")
    short = launch.rollout.vllm.model_copy(update={"start_seconds": 1.0})
    slow = Launch(launch.rollout.model_copy(update={"vllm": short}), launch.model, launch.log_folder)
    before = set(running())
    with pytest.raises(EngineError, match=r"did not answer within rollout\.vllm.start_seconds=1"):
        VllmProcess(slow)
    assert not set(running()) - before


def running() -> list[int]:
    """Guardians that this process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if str(os.getpid()).encode() in words and any(word.endswith(b"guardian.py") for word in words):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def test_a_missing_environment_names_the_command_that_makes_it(launch, tmp_path):
    nowhere = launch.rollout.vllm.model_copy(update={"environment": tmp_path / "nowhere"})
    with pytest.raises(ConfigError, match=r"rlhf setup-vllm --into .*nowhere"):
        VllmProcess(Launch(launch.rollout.model_copy(update={"vllm": nowhere}), launch.model, launch.log_folder))


def test_the_command_line_says_what_sampling_needs(launch):
    command = command_of(launch, 4321)
    pairs = dict(pairwise(command))
    assert pairs["--port"] == "4321" and pairs["--host"] == "127.0.0.1"
    assert pairs["--logprobs-mode"] == "processed_logprobs" and pairs["--generation-config"] == "vllm"
    assert pairs["--worker-extension-cls"] == "rlhf_weight_sync.WeightSync" and pairs["--dtype"] == "float32"
    assert pairs["--max-model-len"] == "128", "256 + 64 are wanted, and the model reads 128"


@pytest.mark.parametrize(("window", "wanted"), [(None, 320), (4096, 320), (100, 100)])
def test_the_length_is_what_the_settings_allow_as_far_as_the_model_reads(window, wanted, launch):
    write_json(launch.model / "config.json", {"max_position_embeddings": window})
    assert model_len(launch.rollout, launch.model) == wanted


def test_the_servers_environment_holds_its_side_of_ours_alone(launch, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    found = environment_of(launch.rollout)
    assert found["PYTHONPATH"] == str(vllm_process.SIDE) and found["VLLM_SERVER_DEV_MODE"] == "1"
    one = launch.rollout.vllm.model_copy(update={"threads": 1})
    assert "," not in environment_of(launch.rollout.model_copy(update={"vllm": one}))["VLLM_CPU_OMP_THREADS_BIND"]
