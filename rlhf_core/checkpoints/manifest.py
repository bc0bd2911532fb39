"""A checkpoint folder's table of contents: sizes and SHA-256 of every file (F1)."""

from __future__ import annotations

from pathlib import Path

from rlhf_core.data.store import MANIFEST, file_sha256, read_json, write_json
from rlhf_core.errors import CheckpointError, DataError


def write_manifest(folder: Path) -> None:
    """Record every file below `folder`; written last, so that its presence means that the rest is whole."""
    files = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    write_json(folder / MANIFEST, {"files": files})


def require_whole(folder: Path, *, check_hashes: bool = True) -> None:
    """Compare the files with the manifest.

    Raises:
        CheckpointError: names the first file that is missing, of another size, or of another hash.
    """
    try:
        files = read_json(folder / MANIFEST)["files"]
    except (DataError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder} has no readable {MANIFEST}, so it was never finished: {error}") from error
    for name, facts in files.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing, but the manifest lists it.")
        if path.stat().st_size != facts["bytes"]:
            raise CheckpointError(
                f"{path} is damaged: it has {path.stat().st_size} bytes, the manifest says {facts['bytes']}."
            )
        if check_hashes and (found := file_sha256(path)) != facts["sha256"]:
            raise CheckpointError(
                f"{path} is damaged: its sha256 is {found[:12]}, the manifest says {facts['sha256'][:12]}."
            )
