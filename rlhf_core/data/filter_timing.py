"""What each filter of responses costs, apart from the metrics because seconds differ from run to run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from rlhf_core.data.json_lines import append_json_line, read_json_lines
from rlhf_core.data.store import RunFolder

FILTER_TIMING_FILE = "filter_timing.jsonl"


def record_filter_timing(
    folder: RunFolder, iteration: int, texts: Mapping[str, int], seconds: Mapping[str, float]
) -> None:
    """Add a row for each filter that was asked; retries add up."""
    for name, count in texts.items():
        if count:
            row = {"iteration": iteration, "filter": name, "texts": count, "seconds": round(seconds[name], 6)}
            append_json_line(folder.metrics / FILTER_TIMING_FILE, row)


def filter_costs(folder: RunFolder) -> pd.DataFrame:
    """Rows by filter, in the order in which they are asked: texts, seconds, milliseconds_per_text."""
    rows = read_json_lines(folder.metrics / FILTER_TIMING_FILE)
    if not rows:
        return pd.DataFrame({"texts": [], "seconds": [], "milliseconds_per_text": []})
    table: Any = pd.DataFrame(rows).groupby("filter", sort=False)[["texts", "seconds"]].sum()
    return table.assign(milliseconds_per_text=1000 * table["seconds"] / table["texts"])
