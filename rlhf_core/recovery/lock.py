"""One owner per run folder, and a fence against an owner who was thought dead.

An exclusive `flock` on the run's `lock` file keeps a second process out for as long as the first one lives, stopped or
not; the system releases it at death, so what the file says can be as old as it likes. Where locks do not reach (hosts
that share a folder without sharing its locks) a second owner can get in. Then the fence holds: whoever takes the run
over writes a new epoch and token into the lock file, and only then removes the staging folders of all others. A commit
is a rename out of the owner's own staging folder, after a look at the lock file:

- looked before the new owner wrote: what was staged is older still, so the new owner removed it or the rename was done
  before the new owner read anything. The rename fails, or the new owner starts from what it committed;
- looked after that: refused.

So no instant is left between the look and the rename in which an overtaken process changes the run.

What remains: this needs a file system whose renames and removals are atomic and whose files are read anew when they
are opened (local disks, NFS, Lustre, CephFS; not a bucket mounted as a folder). Two processes that take over in the
same instant on hosts without common locks may remove each other's staging folder: then at least one of them fails with
RunLocked, and nothing is damaged. Files outside the checkpoints (rollouts, metrics, events) are guarded by the lock
alone: a commit of theirs can be repeated, as both owners would write the same content.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import shutil
import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlhf_core.data.store import RunFolder, disk_errors, fsync_path
from rlhf_core.errors import RunFolderError, RunLocked

_OWNER_BYTES = 512
"""The owner is written in one call and padded to this, so that no kill leaves half of it."""
_STAGING, _DROPPED = ".staging-", ".dropped-"


@dataclass
class RunLock:
    """Held by the process that owns the run's engines; released by `release` or by the process's death."""

    folder: RunFolder
    descriptor: int
    epoch: int
    token: str

    @property
    def staging(self) -> Path:
        """Where this owner prepares what it will commit; nobody else writes there."""
        return self.folder.checkpoints / f"{_STAGING}{self.epoch:06d}-{self.token}"

    def require_ownership(self) -> None:
        """Raise RunLocked when another owner has taken the run since."""
        owner = _read_owner(self.folder)
        if (owner.get("epoch"), owner.get("token")) != (self.epoch, self.token):
            raise RunLocked(f"{self.folder.path} now belongs to {_describe(owner)}; this process stops writing to it.")

    @contextmanager
    def staged(self, name: str) -> Generator[Path]:
        """Yield the path to prepare `name` at; what is still there at the end is removed."""
        with disk_errors(self.staging):
            self.staging.mkdir(parents=True, exist_ok=True)
        try:
            yield self.staging / name
        finally:
            shutil.rmtree(self.staging, ignore_errors=True)

    def commit(self, staged: Path, final: Path) -> None:
        """Move what was staged and forced to the disk to its place, if this process still owns the run.

        A file replaces the one at `final`; a folder found there (damaged, or left by a kill) is removed.

        Raises:
            RunLocked: another process has taken the run over.
        """
        self.require_ownership()
        try:
            if staged.is_dir() and final.exists():
                final.rename(self.staging / f"{final.name}.replaced")
            staged.rename(final)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE, errno.ENOTEMPTY, errno.EEXIST):
                raise
            self.require_ownership()
            raise RunLocked(
                f"{final} could not be put in place ({error}): another process is at work in {self.folder.path}. "
                "Stop all but one, then `rlhf resume`."
            ) from error
        fsync_path(final.parent)

    def release(self) -> None:
        shutil.rmtree(self.staging, ignore_errors=True)
        os.close(self.descriptor)


def acquire_lock(folder: RunFolder) -> RunLock:
    """Take the run, or say who has it; removes what earlier owners left half-written.

    Raises:
        RunLocked: another process holds the lock.
        RunFolderError: the file system has no locks, or cannot be written.
    """
    with disk_errors(folder.lock):
        folder.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _lock(folder, descriptor)
        lock = RunLock(folder, descriptor, int(_read_owner(folder).get("epoch", 0)) + 1, secrets.token_hex(4))
        with disk_errors(folder.lock):
            _write_owner(lock)
        lock.require_ownership()
        _remove_what_others_staged(lock)
    except BaseException:
        os.close(descriptor)
        raise
    return lock


def _lock(folder: RunFolder, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RunLocked(
            f"{folder.path} is in use by {_describe(_read_owner(folder))}. "
            "Wait until it ends, or stop that process; or give this run another name (--name)."
        ) from error
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        raise RunFolderError(
            f"{folder.path} lies on a file system without file locks ({error}), so two processes could train into it. "
            "Set `home` to a file system with locks, or mount this one with them."
        ) from error


def _write_owner(lock: RunLock) -> None:
    owner = {
        "epoch": lock.epoch,
        "token": lock.token,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    os.pwrite(lock.descriptor, json.dumps(owner).ljust(_OWNER_BYTES - 1).encode() + b"\n", 0)
    os.ftruncate(lock.descriptor, _OWNER_BYTES)
    os.fsync(lock.descriptor)


def _remove_what_others_staged(lock: RunLock) -> None:
    """Each folder is first renamed: from then on no path into it leads anywhere."""
    checkpoints = lock.folder.checkpoints
    for path in [*checkpoints.glob(f"{_STAGING}*"), *checkpoints.glob(".*.partial")]:
        if path != lock.staging and path.is_dir():
            path.rename(checkpoints / f"{_DROPPED}{path.name.lstrip('.')}")
        elif path.is_file():
            path.unlink()
    for path in checkpoints.glob(f"{_DROPPED}*"):
        shutil.rmtree(path, ignore_errors=True)


def _read_owner(folder: RunFolder) -> dict[str, Any]:
    """What the lock file says; nothing where it cannot be read: that blocks nobody, as the token is new anyway."""
    try:
        owner: Any = json.loads(folder.lock.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _describe(owner: dict[str, Any]) -> str:
    since = f" since {owner['since']}" if "since" in owner else ""
    return f"process {owner.get('pid', '?')} on {owner.get('host', '?')}{since}"
