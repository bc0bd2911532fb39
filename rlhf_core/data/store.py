"""The run folder: atomic writes, finished stages and their manifests.

A stage writes into a folder beside its final place and renames it; the manifest is written last, so a folder that is
there is whole. Whether a stored result serves again is decided by its key: the inputs' hashes, the settings used and
the code's version.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from rlhf_core import __version__
from rlhf_core.data.refs import StageRef
from rlhf_core.errors import DataError, RlhfError, RunFolderError

MANIFEST = "MANIFEST.json"
_HASH_CHUNK_BYTES = 1 << 22


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, as hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def stable_hash(value: Any) -> str:
    """SHA-256 of a JSON-able value, independent of the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def fsync_path(path: Path) -> None:
    """Force a file or a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(path: Path) -> Generator[None]:
    """Turn the system's refusals to write into one error that says what to do."""
    try:
        yield
    except Exception as error:  # the tokenizers' library raises a bare one, with the number in its text
        advice = {
            errno.ENOSPC: "the disk is full. Free some space, or set `home` to another disk",
            errno.EDQUOT: "the disk quota is used up. Free some space, or set `home` to another disk",
            errno.EFBIG: "a file would grow larger than allowed. Raise `ulimit -f`, or set `home` to another disk",
            errno.EROFS: "the file system is read-only. Set `home` to a folder that can be written",
            errno.EACCES: "writing is not permitted. Set `home` to a folder that you may write",
            errno.EPERM: "writing is not permitted. Set `home` to a folder that you may write",
            errno.ENOTDIR: "a part of the path is a file. Set `home` to a folder",
            errno.EEXIST: "a file is in the way. Set `home` to a folder",
        }.get(_error_number(error))
        if advice is None:
            raise
        raise RunFolderError(
            f"cannot write {path}: {advice}; then `rlhf resume` the run, or run it again if it had not begun. "
            "Nothing saved is lost."
        ) from error


def _error_number(error: Exception) -> int:
    """The system's number of an error, 0 for another; safetensors and tokenizers tell it in the text alone."""
    if isinstance(error, OSError):
        return error.errno or 0
    if isinstance(error, RlhfError):
        return 0
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else 0


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: beside, fsync, rename."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        fsync_path(path.parent)


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(value, indent=1, sort_keys=True, default=str) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing.") from error
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON: {error}. It is damaged; remove it and resume the run.") from error


def write_table(path: Path, frame: pd.DataFrame, schema: pa.Schema) -> None:
    """Write a frame as Parquet with exactly the schema's columns first; further columns follow as they are."""
    missing = [name for name in schema.names if name not in frame.columns]
    if missing:
        raise DataError(f"{path.name}: columns {missing} are missing; it has {list(frame.columns)}.")
    extra = [name for name in frame.columns if name not in schema.names]
    rows = frame[schema.names]
    table = schema.empty_table() if frame.empty else pa.Table.from_pandas(rows, schema=schema, preserve_index=False)
    for name in extra:
        table = table.append_column(name, pa.array(frame[name], from_pandas=True))
    with disk_errors(path):
        pq.write_table(table, path)


def read_table(path: Path) -> pd.DataFrame:
    """Read a Parquet file; list columns come back as Python lists, null as None."""
    if not path.exists():
        raise DataError(f"{path} is missing; remove its folder and resume the run.")
    table = pq.read_table(path)
    return pd.DataFrame({name: _column(table.column(name)) for name in table.column_names})


def _column(column: pa.ChunkedArray) -> Any:
    if pa.types.is_list(column.type) or pa.types.is_string(column.type):
        return pd.Series(column.to_pylist(), dtype=object)
    return column.to_pandas()


@contextmanager
def stage_folder(final: Path) -> Generator[Path]:
    """Yield a fresh folder beside `final`; on success it is fsynced and takes the place of `final`."""
    partial = final.with_name(f".{final.name}.partial")
    with disk_errors(final):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            yield partial
            for path in partial.rglob("*"):
                fsync_path(path)
            fsync_path(partial)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        if final.exists():
            shutil.rmtree(final)
        partial.replace(final)
        fsync_path(final.parent)


@dataclass(frozen=True)
class StageKey:
    """What a stage's result depends on."""

    stage: str
    inputs: Mapping[str, str]
    settings: Any

    @property
    def sha256(self) -> str:
        return stable_hash([self.stage, dict(self.inputs), self.settings, __version__])


def finish_stage(folder: Path, key: StageKey, *, rows: int, metrics: Mapping[str, float]) -> None:
    """Write the manifest of `folder`: files with sizes and hashes, the key, counts and metrics."""
    files = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    write_json(
        folder / MANIFEST,
        {"stage": key.stage, "key": key.sha256, "files": files, "rows": rows, "metrics": dict(metrics)},
    )


def load_stage(folder: Path) -> StageRef:
    """The finished stage in `folder`."""
    manifest = read_json(folder / MANIFEST)
    return StageRef(
        stage=manifest["stage"],
        path=folder,
        sha256=file_sha256(folder / MANIFEST),
        rows=manifest["rows"],
        metrics=manifest["metrics"],
    )


def finished_stage(folder: Path, key: StageKey) -> StageRef | None:
    """The stored result when it answers `key` and its files have the recorded sizes; else None."""
    if not (folder / MANIFEST).exists():
        return None
    manifest = read_json(folder / MANIFEST)
    if manifest["key"] != key.sha256:
        return None
    for name, facts in manifest["files"].items():
        path = folder / name
        if not path.exists() or path.stat().st_size != facts["bytes"]:
            return None
    return load_stage(folder)


@dataclass(frozen=True)
class RunFolder:
    """Names of everything in a run's folder."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.json"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def notifications(self) -> Path:
        return self.path / "notifications.jsonl"

    @property
    def flow_runs(self) -> Path:
        return self.path / "flow_runs.jsonl"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def prompts(self) -> Path:
        return self.path / "prompts"

    @property
    def preferences(self) -> Path:
        """Pairs of safe replies and the responses that they replaced, a file by iteration."""
        return self.path / "preferences"

    @property
    def baseline(self) -> Path:
        return self.path / "baseline"

    @property
    def reward_model(self) -> Path:
        return self.path / "reward_model"

    @property
    def validation(self) -> Path:
        return self.path / "validation"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def best(self) -> Path:
        return self.path / "best"

    def iteration(self, number: int) -> Path:
        return self.path / "iterations" / f"{number:06d}"

    def round(self, number: int) -> Path:
        return self.path / "rounds" / f"{number:03d}"
