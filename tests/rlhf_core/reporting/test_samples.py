"""Rollouts in the report: histograms, extremes, outliers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from rlhf_core.data.store import StageKey, finish_stage, stage_folder
from rlhf_core.errors import DataError
from rlhf_core.reporting.samples import extremes, prompt_outliers, recent_rollouts, reward_histogram
from tests.rlhf_core.reporting.run_folder import make_run


def rollouts(rewards: list[float], prompts: list[str] | None = None) -> pd.DataFrame:
    names = prompts or [f"p{number}" for number in range(len(rewards))]
    return pd.DataFrame(
        {"iteration": 1, "prompt_id": names, "domain": "d", "prompt": "?", "response": "!", "reward_raw": rewards}
    )


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30), st.integers(1, 8))
def test_best_and_worst_are_ordered_apart_and_nothing_lies_outside_them(rewards: list[float], count: int):
    best, worst = extremes(rollouts(rewards), count)
    ordered = sorted(rewards)
    assert best["reward_raw"].tolist() == ordered[::-1][: len(best)]
    assert worst["reward_raw"].tolist() == ordered[: len(worst)]
    assert not set(best.index) & set(worst.index)


def test_a_prompt_far_from_all_others_is_an_outlier_with_the_z_of_the_definition():
    rewards = [0.1 * (number % 3) for number in range(30)] + [9.0]
    found = prompt_outliers(rollouts(rewards))
    assert found["prompt_id"].tolist() == ["p30"]
    assert found["reward_z"][0] == pytest.approx((9.0 - np.mean(rewards)) / np.std(rewards))


def test_a_high_kl_alone_makes_an_outlier():
    frame = rollouts([0.0] * 30).assign(kl_nats=[0.01, 0.02] * 14 + [0.01, 0.9])
    assert prompt_outliers(frame)["prompt_id"].tolist() == ["p29"]


def test_equal_rewards_have_no_outliers():
    assert prompt_outliers(rollouts([1.0] * 20)).empty


def test_each_iteration_of_the_histogram_sums_to_one(tmp_path: Path):
    histogram = reward_histogram(make_run(tmp_path / "run", rounds=1, per_round=3))
    assert histogram is not None and histogram.iterations == [1, 2, 3]
    assert histogram.share.sum(axis=0) == pytest.approx([1.0, 1.0, 1.0])


def test_only_the_last_iterations_are_read(tmp_path: Path):
    folder = make_run(tmp_path / "run", rounds=1, per_round=3)
    frame = recent_rollouts(folder, iterations=2)
    assert frame is not None and sorted(set(frame["iteration"])) == [2, 3]
    assert frame["kl_nats"].isna().all()


def test_kl_of_a_rollout_is_the_mean_k3_over_its_own_tokens(tmp_path: Path):
    folder = make_run(tmp_path / "run", rounds=1, per_round=1)
    scored = recent_rollouts(folder)
    assert scored is not None
    kept = scored.iloc[:2][["prompt_id", "sample_index", "valid"]]
    for stage in ("validated", "experience"):
        with stage_folder(folder.iteration(1) / stage) as partial:
            if stage == "validated":
                kept.to_parquet(partial / "validated.parquet")
            else:
                old, ref = torch.tensor([[-1.0, -2.0], [-1.0, 0.0]]), torch.tensor([[-1.5, -2.5], [-1.0, math.nan]])
                mask = torch.tensor([[True, True], [True, False]])
                tensors = {"old_logprobs": old, "ref_logprobs": ref, "response_mask": mask}
                save_file(tensors, partial / "experience.safetensors")
            finish_stage(partial, StageKey(stage, {}, {}), rows=2, metrics={})
    found = recent_rollouts(folder)
    assert found is not None
    by_prompt = found.set_index("prompt_id")["kl_nats"]
    assert by_prompt[kept["prompt_id"]].tolist() == pytest.approx([math.exp(-0.5) - 1 + 0.5, 0.0])


def test_a_table_without_its_columns_is_named(tmp_path: Path):
    folder = make_run(tmp_path / "run", rounds=1, per_round=1)
    pd.DataFrame({"reward": [1.0]}).to_parquet(folder.iteration(1) / "scored" / "scored.parquet")
    with pytest.raises(DataError, match=r"scored\.parquet lacks the columns \['reward_raw'\]"):
        reward_histogram(folder)
