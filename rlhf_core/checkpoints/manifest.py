"""A checkpoint folder's table of contents: sizes and SHA-256 of every file (F1)."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rlhf_core.data.store import MANIFEST, file_sha256, fsync_path, read_json, write_json
from rlhf_core.errors import CheckpointError, DataError


@dataclass(frozen=True)
class _Record:
    """What is under way for one file, and how the file looked when that began."""

    look: tuple[int, int, int]
    forced: Future[None]
    sha256: Future[str]


class ManifestWriter:
    """Forces files to the disk and hashes them in the background, each from when it is reported whole.

    Hashing takes cores and forcing takes the disk, so they run side by side and beside whatever writes the next file;
    all of them let go of Python's lock. The manifest is written last, so its presence means that the rest is whole.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._disk = ThreadPoolExecutor(1)
        self._cores = ThreadPoolExecutor(max(1, min(4, os.cpu_count() or 1)))
        self._records: dict[Path, _Record] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for what runs and drop what does not yet: afterwards nothing reads the folder."""
        for pool in (self._disk, self._cores):
            pool.shutdown(wait=True, cancel_futures=True)

    def add(self, path: Path) -> None:
        """Begin with a file that is whole."""
        look = _look(path)
        self._records[path] = _Record(look, self._disk.submit(fsync_path, path), self._cores.submit(file_sha256, path))

    def finish(self) -> str:
        """Record every file below the folder, reported or not; the SHA-256 of the manifest itself.

        A file that has changed since it was reported is taken anew.
        """
        paths = [path for path in self._folder.rglob("*") if path.is_file() and path.name != MANIFEST]
        for path in sorted(paths, key=lambda path: -path.stat().st_size):
            if path not in self._records or self._records[path].look != _look(path):
                self.add(path)
        files: dict[str, dict[str, int | str]] = {}
        for path in paths:
            record = self._records[path]
            record.forced.result()
            files[str(path.relative_to(self._folder))] = {"bytes": record.look[0], "sha256": record.sha256.result()}
        for path in self._folder.rglob("*"):
            if path.is_dir():
                fsync_path(path)
        write_json(self._folder / MANIFEST, {"files": files})
        return file_sha256(self._folder / MANIFEST)


def _look(path: Path) -> tuple[int, int, int]:
    facts = path.stat()
    return facts.st_size, facts.st_mtime_ns, facts.st_ino


def require_whole(folder: Path, *, manifest_sha256: str | None = None, check_hashes: bool = True) -> None:
    """Compare the files with the manifest, and the manifest with what is known of it.

    Args:
        folder: of a checkpoint.
        manifest_sha256: of the manifest, where the registry knows it.
        check_hashes: False compares sizes alone.

    Raises:
        CheckpointError: names the first file that is missing, of another size, or of another hash.
    """
    if manifest_sha256 is not None and (folder / MANIFEST).is_file():
        _require_hash(folder / MANIFEST, manifest_sha256, "the registry")
    try:
        files = read_json(folder / MANIFEST)["files"]
    except (DataError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{folder} has no readable {MANIFEST}, so it was never finished or is damaged: {error}"
        ) from error
    for name, facts in files.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing, but the manifest lists it.")
        if path.stat().st_size != facts["bytes"]:
            raise CheckpointError(
                f"{path} is damaged: it has {path.stat().st_size} bytes, the manifest says {facts['bytes']}."
            )
        if check_hashes:
            _require_hash(path, facts["sha256"], "the manifest")


def _require_hash(path: Path, expected: str, source: str) -> None:
    found = file_sha256(path)
    if found != expected:
        raise CheckpointError(f"{path} is damaged: its sha256 is {found[:12]}, {source} says {expected[:12]}.")
