"""Items are counted where they lie, and as they will be for a world that is not made yet."""

from __future__ import annotations

import pytest

from rlhf_core.config.load import load_config
from rlhf_core.errors import DataError
from rlhf_core.evaluation.local_tasks import load_items
from rlhf_core.quickstart.item_counts import benchmark_items
from rlhf_core.quickstart.world import World
from tests.tiny_model import TINY_WORLD


def test_the_quickstarts_items_are_counted_before_its_world_is_made():
    assert benchmark_items(load_config("quickstart")) == {"mmlu": 220, "hellaswag": 300}


def test_local_items_are_counted_as_they_are_read_and_hub_tasks_are_not(tmp_path):
    World(TINY_WORLD, seed=0).write(tmp_path)
    local = ["name: own", "format: hellaswag_jsonl", "path: hellaswag.jsonl", "items: null", "fewshot: 2"]
    benchmarks = f"evaluation.benchmarks=[{{{', '.join(local)}}}, {{name: mmlu}}]"
    config = load_config("quickstart", [f"data.root={tmp_path}", benchmarks])
    lines = (tmp_path / "hellaswag.jsonl").read_text().splitlines()
    assert benchmark_items(config) == {"own": len(lines) - 2}
    assert len(load_items(config.evaluation.benchmarks[0], tmp_path)) == len(lines) - 2


def test_a_benchmark_whose_file_is_missing_is_named(tmp_path):
    with pytest.raises(DataError, match=rf"{tmp_path}/mmlu has no test"):
        benchmark_items(load_config("quickstart", [f"data.root={tmp_path}"]))
