"""One owner per run folder: an exclusive lock, and an epoch that fences an owner who was thought dead."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from dataclasses import dataclass
from typing import IO, Any

from rlhf_core.data.store import RunFolder, disk_errors
from rlhf_core.errors import RunLocked


@dataclass
class RunLock:
    """Held by the process that owns the run's engines; released by `release` or by the process's death."""

    folder: RunFolder
    file: IO[str]
    epoch: int

    def require_ownership(self) -> None:
        """Raise RunLocked when another owner has taken the run since; called before each checkpoint commit."""
        owner = _read_owner(self.folder)
        if owner.get("epoch") != self.epoch:
            raise RunLocked(f"{self.folder.path} now belongs to {_describe(owner)}; this process stops writing to it.")

    def release(self) -> None:
        fcntl.flock(self.file, fcntl.LOCK_UN)
        self.file.close()


def acquire_lock(folder: RunFolder) -> RunLock:
    """Take the run, or say who has it.

    Raises:
        RunLocked: another process holds the lock.
    """
    with disk_errors(folder.lock):
        folder.path.mkdir(parents=True, exist_ok=True)
        file = folder.lock.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise RunLocked(
            f"{folder.path} is in use by {_describe(_read_owner(folder))}. "
            "Wait until it ends, or stop that process; or give this run another name (--name)."
        ) from error
    epoch = int(_read_owner(folder).get("epoch", 0)) + 1
    with disk_errors(folder.lock):
        file.seek(0)
        file.truncate()
        file.write(json.dumps({"epoch": epoch, "pid": os.getpid(), "host": socket.gethostname()}))
        file.flush()
        os.fsync(file.fileno())
    return RunLock(folder, file, epoch)


def _read_owner(folder: RunFolder) -> dict[str, Any]:
    text = folder.lock.read_text()
    return json.loads(text) if text.strip() else {}


def _describe(owner: dict[str, Any]) -> str:
    return f"process {owner.get('pid', '?')} on {owner.get('host', '?')}"
