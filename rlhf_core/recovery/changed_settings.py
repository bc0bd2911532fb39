"""What may change of a run when it goes on: retries, who is told, and the reward model's gate until it accepts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_core.config.run import RunConfig
from rlhf_core.data.reward_model_record import load_reward_model_record
from rlhf_core.data.store import RunFolder
from rlhf_core.errors import RunFolderError

GATE = "reward_model.gate."
_SERVERS = tuple(
    f"rollout.vllm.{name}"
    for name in (
        "urls",
        "environment",
        "kv_cache_gib",
        "threads",
        "request_",
        "restarts",
        "start_",
        "sync_",
        "api_key_",
    )
)
FREE = ("recovery.", "notifications.", "cluster.", *_SERVERS)
"""These change no result (`cluster.` but for rounding; a checkpoint fits any ranks): they may change at any start."""


def accepted_changes(folder: RunFolder, stored: RunConfig, config: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Setting → `(old, new)` of what the run takes over; nothing where the settings are the same.

    A refused reward model may be judged by another gate: what it was trained with stays as it is.

    Raises:
        RunFolderError: other settings differ, or the gate has accepted a model, on which the run already stands.
    """
    changes = dict(_differences(stored.model_dump(mode="json"), config.model_dump(mode="json")))
    others = sorted(name for name in changes if not name.startswith((GATE, *FREE)))
    if others:
        raise RunFolderError(
            f"{folder.path} holds a run with other settings (they differ in: {', '.join(others)}). "
            "Resume it as it is with `rlhf resume`, or choose another name with --name."
        )
    gate = sorted(name for name in changes if name.startswith(GATE))
    if gate and not _is_gate_open(folder):
        raise RunFolderError(
            f"{folder.path}: the reward model has been accepted, so its gate cannot change any more "
            f"({', '.join(gate)}). Resume it as it is (`rlhf resume`), or choose another name with --name."
        )
    return changes


def _is_gate_open(folder: RunFolder) -> bool:
    """Whether no reward model has been accepted yet."""
    record = load_reward_model_record(folder.reward_model)
    return record is None or bool(record.failures)


def _differences(old: Any, new: Any, place: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Dotted keys whose values differ, and both values."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from _differences(old.get(key), new.get(key), f"{place}.{key}" if place else str(key))
    elif old != new:
        yield place, (old, new)
