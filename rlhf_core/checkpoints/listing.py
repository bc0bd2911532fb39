"""The checkpoints of a run as rows, for `rlhf checkpoints list`; reads, and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rlhf_core.checkpoints.records import Entry, RegistryState, Status, read_registry
from rlhf_core.data.json_lines import read_json_lines
from rlhf_core.data.store import MANIFEST, RunFolder


@dataclass(frozen=True)
class CheckpointRow:
    """One checkpoint; None where there is nothing to tell."""

    step: int
    status: Status
    roles: tuple[str, ...]
    """Of `current`, `promoted`, `best`."""
    score: float | None
    kl_nats: float | None
    bytes: int | None
    saved_at: datetime | None
    path: Path


def checkpoint_rows(folder: RunFolder) -> list[CheckpointRow]:
    """All checkpoints by step.

    Raises:
        DataError, CheckpointError: REGISTRY.json cannot be read.
    """
    state = read_registry(folder)
    measured = {row["iteration"]: row for row in read_json_lines(folder.metrics / "metrics.jsonl")}
    return [_row(state, step, entry, measured.get(step, {})) for step, entry in sorted(state.checkpoints.items())]


def _row(state: RegistryState, step: int, entry: Entry, metrics: dict[str, Any]) -> CheckpointRow:
    current = None if state.current is None else state.current.step
    places = {"current": current, "promoted": state.promoted, "best": state.best}
    manifest = entry.ref.path / MANIFEST
    files = [path for path in entry.ref.path.rglob("*") if path.is_file()]
    return CheckpointRow(
        step=step,
        status=entry.status,
        roles=tuple(role for role, of in places.items() if of == step),
        score=entry.score,
        kl_nats=metrics.get("experience/kl_exact_nats"),
        bytes=sum(path.stat().st_size for path in files) if files else None,
        saved_at=datetime.fromtimestamp(manifest.stat().st_mtime).astimezone() if manifest.exists() else None,
        path=entry.ref.path,
    )
