"""A checkpoint folder's table of contents: sizes and SHA-256 of every file (F1)."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlhf_core.data.store import MANIFEST, file_sha256, fsync_path, read_json, write_json
from rlhf_core.errors import CheckpointError, DataError


def write_manifest(folder: Path) -> str:
    """Force every file below `folder` to the disk and record it; the SHA-256 of the manifest itself.

    The manifest is written last, so its presence means that the rest is whole. Hashing takes cores and forcing takes
    the disk, so they run side by side; both let go of Python's lock.
    """
    paths = sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: -path.stat().st_size)
    paths = [path for path in paths if path.name != MANIFEST]
    with ThreadPoolExecutor(1) as disk, ThreadPoolExecutor(max(1, min(4, os.cpu_count() or 1))) as cores:
        forced = [disk.submit(fsync_path, path) for path in paths]
        hashes = list(cores.map(file_sha256, paths))
        for one in forced:
            one.result()
    facts = zip(paths, hashes, strict=True)
    files = {str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": sha} for path, sha in facts}
    for path in folder.rglob("*"):
        if path.is_dir():
            fsync_path(path)
    write_json(folder / MANIFEST, {"files": files})
    return file_sha256(folder / MANIFEST)


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
