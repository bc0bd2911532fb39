"""Metrics rows: repeatable bytes, idempotent, the same in JSON lines, Parquet and TensorBoard."""

from __future__ import annotations

import json
import math
from itertools import permutations
from pathlib import Path

import pandas as pd
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlhf_core.data.store import RunFolder
from rlhf_core.errors import DataError
from rlhf_core.reporting.metrics import record_iteration
from rlhf_core.reporting.sources import load_metrics


def tensorboard_points(folder: RunFolder, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder.tensorboard), size_guidance={"scalars": 0}).Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_a_repeated_iteration_replaces_its_row_in_all_three_places(tmp_path: Path):
    folder = RunFolder(tmp_path)
    for iteration, value in ((1, 0.5), (2, 0.25), (3, 9.0), (3, 0.125), (2, 0.75)):
        record_iteration(folder, iteration, {"reward/raw_mean": value, "control/kl_coef": 0.5})

    rows = [json.loads(line) for line in (folder.metrics / "metrics.jsonl").read_text().splitlines()]
    assert [(row["iteration"], row["reward/raw_mean"]) for row in rows] == [(1, 0.5), (2, 0.75), (3, 0.125)]
    parquet = pd.read_parquet(folder.metrics / "metrics.parquet")
    assert parquet["reward/raw_mean"].tolist() == [0.5, 0.75, 0.125]
    assert tensorboard_points(folder, "reward/raw_mean") == [(1, 0.5), (2, 0.75), (3, 0.125)]


def test_the_file_depends_on_the_rows_alone_not_on_their_order(tmp_path: Path):
    content = set[bytes]()
    for order in permutations([1, 2, 3]):
        folder = RunFolder(tmp_path / str(order))
        for iteration in order:
            record_iteration(folder, iteration, {"b/y": iteration / 3, "a/x": 1.0})
        content.add((folder.metrics / "metrics.jsonl").read_bytes())
    assert len(content) == 1


def test_a_value_that_is_not_finite_is_null_and_every_line_stays_strict_json(tmp_path: Path):
    folder = RunFolder(tmp_path)
    record_iteration(folder, 1, {"update/policy_loss": math.nan, "update/value_loss": math.inf, "reward/mean": 1.0})
    line = (folder.metrics / "metrics.jsonl").read_text()
    assert json.loads(line, parse_constant=lambda name: pytest.fail(name)) == {
        "iteration": 1,
        "reward/mean": 1.0,
        "update/policy_loss": None,
        "update/value_loss": None,
    }
    assert load_metrics(folder)["update/policy_loss"].isna().all()


def test_metrics_that_come_and_go_leave_gaps_not_zeros(tmp_path: Path):
    folder = RunFolder(tmp_path)
    record_iteration(folder, 1, {"update/stop_kl": 1.0})
    record_iteration(folder, 2, {"reward/mean": 2.0})
    frame = load_metrics(folder)
    assert frame.index.tolist() == [1, 2]
    assert math.isnan(frame.loc[2, "update/stop_kl"]) and math.isnan(frame.loc[1, "reward/mean"])


def test_no_metrics_is_an_empty_frame(tmp_path: Path):
    assert load_metrics(RunFolder(tmp_path)).empty


def test_nothing_partial_is_left_behind(tmp_path: Path):
    folder = RunFolder(tmp_path)
    (folder.metrics / ".tensorboard-000001.partial").mkdir(parents=True)
    (folder.metrics / ".tensorboard-000001.partial" / "events.out.tfevents.torn").write_bytes(b"torn")
    record_iteration(folder, 1, {"reward/mean": 1.0})
    assert sorted(path.name for path in folder.metrics.iterdir()) == ["metrics.jsonl", "metrics.parquet"]
    assert [path.name for path in folder.tensorboard.iterdir()] == ["events.out.tfevents.000001"]


@pytest.mark.parametrize("value", [True, "0.5", None])
def test_a_metric_that_is_not_a_number_is_refused_by_name(tmp_path: Path, value: object):
    with pytest.raises(DataError, match="reward/mean"):
        record_iteration(RunFolder(tmp_path), 1, {"reward/mean": value})  # type: ignore[dict-item]


def test_iteration_zero_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match="numbered from 1"):
        record_iteration(RunFolder(tmp_path), 0, {})
