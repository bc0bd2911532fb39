"""One row of metrics per iteration: JSON lines (the record), Parquet and TensorBoard (views of it).

The same seed gives the same `metrics.jsonl` byte for byte: nothing that the clock or the machine decides is in it.
Seconds stand apart, in `timing.jsonl`. What each metric means is said in docs/metrics.md.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.tensorboard import SummaryWriter

from rlhf_core.data.json_lines import read_json_lines
from rlhf_core.data.store import RunFolder, disk_errors, fsync_path, write_bytes
from rlhf_core.errors import DataError
from rlhf_core.reporting.sources import metrics_frame

METRICS_FILE = "metrics.jsonl"
METRICS_TABLE = "metrics.parquet"


def record_iteration(folder: RunFolder, iteration: int, metrics: Mapping[str, float]) -> None:
    """Store the row of `iteration` (from 1); a row that is there already is replaced.

    A value that is not finite is stored as null, so that every line is strict JSON.

    Raises:
        DataError: the iteration is below 1, or a metric is not a number.
    """
    if iteration < 1:
        raise DataError(f"iteration {iteration}: iterations are numbered from 1.")
    row = {**{name: _number(name, metrics[name]) for name in metrics}, "iteration": iteration}
    kept = [old for old in read_json_lines(folder.metrics / METRICS_FILE) if old["iteration"] != iteration]
    rows = sorted([*kept, row], key=_iteration)
    lines = "".join(json.dumps(each, sort_keys=True, allow_nan=False) + "\n" for each in rows)
    write_bytes(folder.metrics / METRICS_FILE, lines.encode())
    _write_parquet(folder.metrics / METRICS_TABLE, rows)
    _write_tensorboard(folder, row)


def _iteration(row: Mapping[str, Any]) -> int:
    return row["iteration"]


def _number(name: str, value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"metric {name!r} is {value!r} ({type(value).__name__}); give a Python float.")
    return float(value) if math.isfinite(value) else None


def _write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pandas(metrics_frame(rows).reset_index(), preserve_index=False), sink)
    write_bytes(path, sink.getvalue().to_pybytes())


def _write_tensorboard(folder: RunFolder, row: Mapping[str, Any]) -> None:
    """One event file per iteration, moved into place whole: a retry replaces its points, a kill leaves none torn."""
    partial = folder.metrics / f".tensorboard-{row['iteration']:06d}.partial"
    with disk_errors(folder.tensorboard):
        shutil.rmtree(partial, ignore_errors=True)
        folder.tensorboard.mkdir(parents=True, exist_ok=True)
        with SummaryWriter(str(partial)) as writer:
            for name, value in sorted(row.items()):
                if name != "iteration" and value is not None:
                    writer.add_scalar(name, value, row["iteration"])
        (written,) = partial.iterdir()
        fsync_path(written)
        written.replace(folder.tensorboard / f"events.out.tfevents.{row['iteration']:06d}")
        fsync_path(folder.tensorboard)
        shutil.rmtree(partial)
