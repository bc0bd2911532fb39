"""What happened in a run, in order: `events.jsonl`."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

from rlhf_core.data.json_lines import append_json_line, read_json_lines
from rlhf_core.data.store import RunFolder, stable_hash

logger = logging.getLogger(__name__)


def record_event(folder: RunFolder, kind: str, message: str, **facts: Any) -> None:
    """Append an event, unless the same one (kind and facts) is there already from before an interruption.

    Args:
        kind: one word of the kind, e.g. `rollback`, `ptx_coef`, `gate`, `excluded_reward`.
        message: what happened and why, in words.
        facts: numbers that prove it; `iteration` and `round` place it in time.
    """
    event_id = stable_hash([kind, facts])[:16]
    if any(row["event_id"] == event_id for row in read_events(folder)):
        return
    logger.info("%s: %s", kind, message)
    append_json_line(
        folder.events,
        {
            "event_id": event_id,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "kind": kind,
            "message": message,
            "iteration": facts.get("iteration"),
            "round": facts.get("round"),
            "facts": facts,
        },
    )


def read_events(folder: RunFolder) -> list[dict[str, Any]]:
    return read_json_lines(folder.events)
