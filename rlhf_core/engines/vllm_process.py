"""A vLLM server that the run starts itself, in vLLM's own environment, and of which nothing stays behind."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from rlhf_core.config.rollout import RolloutConfig
from rlhf_core.data.store import read_json
from rlhf_core.engines.vllm_environment import is_cpu_build, python_of
from rlhf_core.errors import EngineError

logger = logging.getLogger(__name__)
SIDE = Path(__file__).parent / "vllm_side"
EXTENSION = "rlhf_weight_sync.WeightSync"
_GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.25
_SAY_SECONDS = 15.0
_TAIL_LINES = 25
_PORTS = 3
_PORT_TAKEN = ("address already in use", "Address already in use")
_SHORTEST_MODEL_LEN = 32


@dataclass(frozen=True)
class Launch:
    """What a server is started with."""

    rollout: RolloutConfig
    model: Path
    log_folder: Path


class VllmProcess:
    """A started server that answers."""

    def __init__(self, launch: Launch) -> None:
        """Start it and wait until it answers.

        Raises:
            ConfigError: vLLM's environment is missing.
            EngineError: the server ended, or does not answer in time; with the end of its log.
        """
        self.url = ""
        for attempt in range(1, _PORTS + 1):
            port = free_port()
            self.url = f"http://127.0.0.1:{port}"
            self.log = _next_log(launch.log_folder)
            self._process = _spawn(command_of(launch, port), environment_of(launch.rollout), self.log)
            try:
                self._await_health(launch.rollout.vllm.start_seconds)
                return
            except BaseException as error:
                self.close()
                is_taken = any(words in log_tail(self.log, 200) for words in _PORT_TAKEN)
                if not (isinstance(error, EngineError) and is_taken and attempt < _PORTS):
                    raise
                logger.warning("port %d was taken meanwhile; vLLM gets another one", port)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def group(self) -> int:
        """The process group, which is also the session, of everything that belongs to the server."""
        return self._process.pid

    def close(self) -> None:
        """End the server and all its processes."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_GRACE_SECONDS + 5)
            except subprocess.TimeoutExpired:
                logger.warning("vLLM's guardian did not end in time; its processes are killed")
        kill_group(self._process.pid)
        self._process.wait()

    def _await_health(self, limit_seconds: float) -> None:
        started = said = time.monotonic()
        while True:
            if self._process.poll() is not None:
                raise EngineError(
                    f"the vLLM server ended while it started. The end of {self.log}:\n{log_tail(self.log)}"
                )
            if _is_healthy(self.url):
                return
            now = time.monotonic()
            if now - started > limit_seconds:
                raise EngineError(
                    f"the vLLM server did not answer within rollout.vllm.start_seconds={limit_seconds:g}. The end of "
                    f"{self.log}:\n{log_tail(self.log)}"
                )
            if now - said > _SAY_SECONDS:
                logger.info("waiting for vLLM to start: %.0f s, log in %s", now - started, self.log)
                said = now
            time.sleep(_POLL_SECONDS)


def command_of(launch: Launch, port: int) -> list[str]:
    """The server's command line."""
    rollout, settings = launch.rollout, launch.rollout.vllm
    python = python_of(settings.environment)
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(launch.model.absolute()), "--served-model-name", "policy"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", settings.dtype]
    command += ["--max-model-len", str(model_len(rollout, launch.model)), "--max-num-seqs", str(rollout.batch_size)]
    command += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    command += ["--worker-extension-cls", EXTENSION]
    if is_cpu_build(python):
        command.append("--enforce-eager")
    return [*command, *settings.extra_arguments]


def model_len(rollout: RolloutConfig, model: Path) -> int:
    """The longest prompt with its response: what the settings allow, as far as the model reads."""
    if rollout.vllm.max_model_len is not None:
        return rollout.vllm.max_model_len
    wanted = max(rollout.max_prompt_tokens + rollout.max_new_tokens, _SHORTEST_MODEL_LEN)
    window = read_json(model / "config.json").get("max_position_embeddings")
    return min(wanted, int(window)) if window else wanted


def environment_of(rollout: RolloutConfig) -> dict[str, str]:
    """The server's environment: this process's, without what is meant for our own Python."""
    kept = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
    cpus = sorted(os.sched_getaffinity(0))[: rollout.vllm.threads]
    return kept | {
        "PYTHONPATH": str(SIDE),
        "RLHF_VLLM_OWNED": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": f"{rollout.vllm.kv_cache_gib}",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cpus)),
        "HF_HUB_OFFLINE": "1",
    }


def free_port() -> int:
    """A port of the loopback interface that nobody uses just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def log_tail(path: Path, lines: int = _TAIL_LINES) -> str:
    """The last lines of a log."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.is_file() else "(no log)"


def kill_group(group: int) -> None:
    """Kill what is left of a process group."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _spawn(command: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    guardian = [sys.executable, "-I", "-S", str(SIDE / "guardian.py"), str(os.getpid()), str(_GRACE_SECONDS)]
    with log.open("ab") as output:
        return subprocess.Popen(
            [*guardian, *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _next_log(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"vllm-{sum(1 for _ in folder.glob('vllm-*.log')) + 1:03d}.log"


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
