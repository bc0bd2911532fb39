"""Seconds by stage, apart from the metrics because they differ from run to run."""

from __future__ import annotations

import math

import pandas as pd

from rlhf_core.data.json_lines import append_json_line, read_json_lines
from rlhf_core.data.store import RunFolder
from rlhf_core.engines.memory_use import MemoryUse
from rlhf_core.errors import DataError

TIMING_FILE = "timing.jsonl"


def record_timing(
    folder: RunFolder, iteration: int, stage: str, seconds: float, memory: MemoryUse | None = None
) -> None:
    """Add the wall time of one stage, and its memory use where it is known.

    Iteration 0 stands for what precedes the first. Retries add up.

    Raises:
        DataError: seconds are negative or not finite.
    """
    if not math.isfinite(seconds) or seconds < 0:
        raise DataError(f"timing of {stage!r} in iteration {iteration}: {seconds} is not a duration in seconds.")
    row: dict[str, object] = {"iteration": iteration, "stage": stage, "seconds": round(seconds, 4)}
    if memory is not None:
        row |= {"memory_bytes": memory.used_bytes, "memory_share": round(memory.share, 4)}
    append_json_line(folder.metrics / TIMING_FILE, row)


def time_by_stage(folder: RunFolder) -> pd.DataFrame:
    """Rows by stage, most seconds first: calls, seconds (in all), mean_seconds, share of the recorded time."""
    rows = read_json_lines(folder.metrics / TIMING_FILE)
    if not rows:
        return pd.DataFrame({"calls": [], "seconds": [], "mean_seconds": [], "share": []})
    groups = pd.DataFrame(rows).groupby("stage")["seconds"]
    table = pd.DataFrame({"calls": groups.size(), "seconds": groups.sum(), "mean_seconds": groups.mean()})
    total = sum(row["seconds"] for row in rows)
    table["share"] = table["seconds"] / total if total else 0.0
    return table.sort_values(["seconds"], ascending=False, kind="stable")
