"""Verification in a process of its own, while the run goes on (`checkpoints.verify=background`).

A process and not a thread: loading a model changes settings of the whole interpreter, which would disturb training,
and its memory is given back for certain. The verdict goes to a file; whoever asks waits for the process, not for a
pipe. A verifier that outlives its run changes nothing: it only reads.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rlhf_core.checkpoints.verify import verify_checkpoint
from rlhf_core.config.models import ModelConfig
from rlhf_core.errors import CheckpointError

_NICENESS = 10


@dataclass(frozen=True)
class _Verifier:
    process: subprocess.Popen[bytes]
    output: IO[bytes]


@dataclass(frozen=True)
class Verdict:
    """`reason` is None where the checkpoint is whole."""

    reason: str | None


_at_work: dict[Path, _Verifier] = {}


def start_verification(folder: Path, config: ModelConfig, *, manifest_sha256: str) -> None:
    """Begin to verify a checkpoint; `verdict` tells the result."""
    output = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the verdict)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", __name__, str(folder), manifest_sha256, config.model_dump_json()]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
    )
    _at_work[folder] = _Verifier(process, output)


def verdict(folder: Path, config: ModelConfig, *, manifest_sha256: str | None, wait: bool) -> Verdict | None:
    """What the verification found; None while it is at work and nobody wants to wait.

    Where this process has started none, or it ended without a verdict (killed, out of memory), it is done here.
    """
    verifier = _at_work.get(folder)
    if verifier is not None and verifier.process.poll() is None and not wait:
        return None
    if verifier is not None:
        del _at_work[folder]
        code = verifier.process.wait()
        verifier.output.seek(0)
        said = verifier.output.read().decode(errors="replace")
        verifier.output.close()
        if code == 0:
            return Verdict(None)
        if code == CheckpointError.exit_code:
            return Verdict(said.strip().splitlines()[-1])
    try:
        verify_checkpoint(folder, config, manifest_sha256=manifest_sha256)
    except CheckpointError as error:
        return Verdict(str(error))
    return Verdict(None)


def _main(folder: str, manifest_sha256: str, config: str) -> int:
    os.nice(_NICENESS)
    try:
        verify_checkpoint(Path(folder), ModelConfig.model_validate_json(config), manifest_sha256=manifest_sha256)
    except CheckpointError as error:
        print(" ".join(str(error).split()))
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(_main(*sys.argv[1:]))
