"""A Slurm allocation of two nodes made of small executables that record how they are called."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deployments" / "slurm" / "rlhf.sbatch"

# srun runs the command on "the node" that --nodelist names; a step without it is run once.
SRUN = """#!/bin/bash
echo "srun $*" >> "$FAKE/calls"
for word in "$@"; do [[ $word == --nodelist=* ]] && export FAKE_HOST="${word#--nodelist=}"; done
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
SCONTROL = """#!/bin/bash
echo "scontrol $*" >> "$FAKE/calls"
if [[ $1 == show ]]; then printf 'node1\\nnode2\\n'; fi
"""
GETENT = """#!/bin/bash
echo "10.0.0.1  STREAM $2"
"""
# A Ray process joins by a file, unless its node is told never to; it lives until it is told to end, or breaks.
RAY = """#!/bin/bash
echo "ray@$FAKE_HOST auth=$RAY_AUTH_MODE token=${#RAY_AUTH_TOKEN} $*" >> "$FAKE/calls"
trap 'echo "ray@$FAKE_HOST stopped" >> "$FAKE/calls"; exit 0' TERM
if [[ $FAKE_HOST != "$FAKE_NEVER_JOINS" ]]; then touch "$FAKE/nodes/$FAKE_HOST"; fi
if [[ $FAKE_HOST == "$FAKE_BREAKS" ]]; then sleep 1; exit 3; fi
while true; do sleep 0.1; done
"""
# The run ends by itself with FAKE_RLHF_CODE, or waits for TERM; FAKE_IS_DEAF makes it ignore that.
RLHF = """#!/bin/bash
echo "rlhf address=$RAY_ADDRESS $*" >> "$FAKE/calls"
if [[ -n $FAKE_RLHF_CODE ]]; then exit "$FAKE_RLHF_CODE"; fi
if [[ -n $FAKE_IS_DEAF ]]; then trap '' TERM
else trap 'echo "rlhf stopped" >> "$FAKE/calls"; exit 143' TERM; fi
touch "$FAKE/started"
while true; do sleep 0.1; done
"""
PREFECT = """#!/bin/bash
echo "prefect $*" >> "$FAKE/calls"
"""
RAY_MODULE = """
import os, pathlib
def init(address, **_):
    if "RAY_ADDRESS" not in os.environ:
        raise ConnectionError("RAY_ADDRESS is not set")
def nodes():
    found = (pathlib.Path(os.environ["FAKE"]) / "nodes").iterdir()
    return [{"Alive": True, "NodeManagerAddress": n.name, "NodeID": "0123456789"} for n in found]
"""


@dataclass
class Allocation:
    """What the script sees, and what it did there."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    jobs: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / "runs"

    def calls(self, start: str = "") -> list[str]:
        lines = (self.folder / "calls").read_text().splitlines() if (self.folder / "calls").exists() else []
        return [line for line in lines if line.startswith(start)]

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        job = subprocess.Popen(
            ["bash", str(SCRIPT), *arguments],
            cwd=ROOT,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.jobs.append(job)
        return job

    def end(self) -> None:
        """End what a broken script left behind."""
        for job in self.jobs:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.wait(10)

    def finish(self, *arguments: str, **environment: str) -> tuple[int, str]:
        process = self.start(*arguments, **environment)
        output, _ = process.communicate(timeout=40)
        return process.returncode, output

    def interrupt(self, sent: signal.Signals, *arguments: str, **environment: str) -> tuple[int, str]:
        """Exit code and output of a job that gets a signal while its run goes on."""
        process = self.start(*arguments, **environment)
        wait_until((self.folder / "started").exists)
        process.send_signal(sent)
        output, _ = process.communicate(timeout=40)
        return process.returncode, output


def wait_until(holds: Callable[[], bool], seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to that in time"
        time.sleep(0.05)


@pytest.fixture
def allocation(tmp_path: Path) -> Generator[Allocation]:
    binaries = tmp_path / "venv" / "bin"
    (tmp_path / "modules" / "ray").mkdir(parents=True)
    (tmp_path / "modules" / "ray" / "__init__.py").write_text(RAY_MODULE)
    (tmp_path / "nodes").mkdir()
    binaries.mkdir(parents=True)
    scripts = {"srun": SRUN, "scontrol": SCONTROL, "getent": GETENT, "ray": RAY, "rlhf": RLHF, "prefect": PREFECT}
    for name, text in scripts.items():
        (binaries / name).write_text(text)
        (binaries / name).chmod(stat.S_IRWXU)
    (binaries / "python").symlink_to(sys.executable)
    allocation = Allocation(
        tmp_path,
        {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{tmp_path / 'modules'}{os.pathsep}{ROOT}",
            "FAKE": str(tmp_path),
            "SLURM_JOB_ID": "4711",
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_GPUS_ON_NODE": "8",
            "SLURM_CPUS_PER_TASK": "64",
            "RLHF_HOME": str(tmp_path / "runs"),
            "RLHF_VENV": str(tmp_path / "venv"),
            "RLHF_TEMP": str(tmp_path / "temp"),
            "RLHF_GRACE_SECONDS": "5",
        },
    )
    yield allocation
    allocation.end()
