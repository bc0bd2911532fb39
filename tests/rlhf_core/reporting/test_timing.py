"""Seconds by stage."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rlhf_core.data.store import RunFolder
from rlhf_core.errors import DataError
from rlhf_core.reporting.timing import record_timing, time_by_stage


def test_stages_are_summed_over_iterations_and_retries_longest_first(tmp_path: Path):
    folder = RunFolder(tmp_path)
    for iteration, stage, seconds in (
        (1, "rollout", 1.0),
        (1, "update", 5.0),
        (2, "rollout", 2.0),
        (2, "rollout", 0.0),
    ):
        record_timing(folder, iteration, stage, seconds)
    table = time_by_stage(folder)
    assert table.index.tolist() == ["update", "rollout"]
    assert table.loc["rollout"].to_dict() == {"calls": 3, "seconds": 3.0, "mean_seconds": 1.0, "share": 0.375}


def test_no_timing_is_an_empty_table(tmp_path: Path):
    assert time_by_stage(RunFolder(tmp_path)).empty


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_what_is_no_duration_is_refused(tmp_path: Path, seconds: float):
    with pytest.raises(DataError, match="not a duration"):
        record_timing(RunFolder(tmp_path), 1, "update", seconds)


def test_a_line_that_a_kill_cut_short_does_not_spoil_the_next_one(tmp_path: Path):
    folder = RunFolder(tmp_path)
    record_timing(folder, 1, "rollout", 1.0)
    with (folder.metrics / "timing.jsonl").open("a") as file:
        file.write('{"iteration": 1, "sta')
    record_timing(folder, 1, "update", 2.0)
    assert time_by_stage(folder)["seconds"].to_dict() == {"update": 2.0, "rollout": 1.0}
