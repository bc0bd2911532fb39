"""Proof 6: what happens to the server must not lose, double or delay a sample for ever."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rlhf_core.engines.protocols import GenerationRequest, Sampling
from rlhf_core.engines.vllm_process import log_tail
from rlhf_core.errors import EngineError, RolloutServerLost
from tests.vllm.conftest import ROOT, started
from tests.vllm.policies import random_policy, save_policy

REQUESTS = [GenerationRequest((4, 5, 6 + seed % 7), seed) for seed in range(200)]
SAMPLING = Sampling(64, 1.0)


def members(group: int) -> list[str]:
    """Living processes of a group."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(f"{folder.name} {(folder / 'cmdline').read_text()[:60]}")
        except OSError:
            continue
    return found


def wait_until_gone(group: int, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while (left := members(group)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left


def engine_core(group: int) -> int:
    return next(int(one.split()[0]) for one in members(group) if "EngineCore" in one)


def api_server(group: int) -> int:
    return next(int(one.split()[0]) for one in members(group) if "api_server" in one or "vllm.entrypoints" in one)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    model, tokenizer = random_policy()
    return save_policy(tmp_path_factory.mktemp("policy"), model, tokenizer, 0), tokenizer


def later(seconds: float, action) -> threading.Timer:
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


@pytest.mark.parametrize("victim", ["api server", "engine", "guardian", "hung engine"])
def test_a_server_that_is_lost_in_mid_batch_is_replaced_and_no_sample_is_lost_or_doubled(
    victim, environment, policy, tmp_path
):
    checkpoint, tokenizer = policy
    seconds = 8.0 if victim == "hung engine" else 120.0
    with started(environment, tokenizer, tmp_path, request_seconds=seconds) as engine:
        engine.sync(checkpoint)
        undisturbed = engine.generate(REQUESTS, SAMPLING)
        group = engine._process.group
        target = {"api server": api_server, "guardian": int}.get(victim, engine_core)(group)
        timer = later(0.3, lambda: os.kill(target, signal.SIGSTOP if "hung" in victim else signal.SIGKILL))
        found = engine.generate(REQUESTS, SAMPLING)
        timer.join()
        assert engine._process.group != group, "the server was replaced"
        wait_until_gone(group)
        assert len(found) == len(REQUESTS)
        equal = sum(a.response_ids == b.response_ids for a, b in zip(found, undisturbed, strict=True))
        assert equal >= 0.9 * len(REQUESTS)  # its seed decides a response, but for float ties in another batch
        last = engine._process.group
    wait_until_gone(last)


def test_a_server_that_may_not_be_restarted_is_a_lost_worker(environment, policy, tmp_path):
    checkpoint, tokenizer = policy
    with started(environment, tokenizer, tmp_path, restarts=0) as engine:
        engine.sync(checkpoint)
        group = engine._process.group
        later(0.3, lambda: os.kill(api_server(group), signal.SIGKILL))
        with pytest.raises(RolloutServerLost, match="no vLLM server is left"):
            engine.generate(REQUESTS, SAMPLING)
        wait_until_gone(group)


def test_a_taken_port_is_left_for_another(environment, policy, tmp_path, monkeypatch):
    checkpoint, tokenizer = policy
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = [taken.getsockname()[1]]
        from rlhf_core.engines import vllm_process

        free = vllm_process.free_port
        monkeypatch.setattr(vllm_process, "free_port", lambda: ports.pop() if ports else free())
        with started(environment, tokenizer, tmp_path) as engine:
            engine.sync(checkpoint)
            assert len(engine.generate(REQUESTS[:3], SAMPLING)) == 3
    assert len(list(tmp_path.glob("vllm-*.log"))) == 2


def test_a_server_that_cannot_start_says_why(environment, policy, tmp_path):
    checkpoint, tokenizer = policy
    with (
        started(environment, tokenizer, tmp_path, extra_arguments=["--no-such-thing"]) as engine,
        pytest.raises(EngineError, match="ended while it started") as caught,
    ):
        engine.sync(checkpoint)
    assert "--no-such-thing" in str(caught.value)


OWNER = """
import sys, time
from pathlib import Path
from rlhf_core.engines.vllm_process import Launch, VllmProcess
from rlhf_core.config.rollout import RolloutConfig
vllm = {"environment": sys.argv[1], "kv_cache_gib": 1}
rollout = RolloutConfig.model_validate({"engine": "vllm", "vllm": vllm})
process = VllmProcess(Launch(rollout, Path(sys.argv[2]), Path(sys.argv[3])))
print(process.group, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_is_left_when_the_run_is_killed(how, environment, policy, tmp_path):
    checkpoint, _ = policy
    command = [sys.executable, "-c", OWNER, str(environment), str(checkpoint.path / "policy"), str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        line = owner.stdout.readline()
        assert line, log_tail(next(iter(tmp_path.glob("*.log"))))
        group = int(line)
        assert len(members(group)) >= 3
        owner.send_signal(how)
        owner.wait(30)
    wait_until_gone(group)
