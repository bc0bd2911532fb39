"""The best of n samples, and what it is expected to be for fewer."""

from __future__ import annotations

import json
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.config.data import DataConfig, SourceConfig
from rlhf_core.data.prepared import held_out_prompts, prompt_pool
from rlhf_core.data.sources import load_rows
from rlhf_core.data.store import read_json, read_table
from rlhf_core.errors import CannotLearn, ConfigError, NumericsError
from rlhf_core.rollout.best_of_n import CURVE, KEPT, SAMPLES, expected_best, run_best_of_n
from tests.rlhf_core.stage_runtime import make_stage_runtime
from tests.tiny_model import make_tiny_world


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=7), st.data())
def test_the_expected_best_is_the_mean_over_all_subsets(scores, data):
    k = data.draw(st.integers(1, len(scores)))
    want = fmean(max(subset) for subset in combinations(scores, k))
    assert expected_best(scores, k) == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize(("scores", "k"), [([1.0], 0), ([1.0], 2), ([1.0, float("nan")], 1), ([], 1)])
def test_a_best_that_cannot_be_told_is_refused(scores, k):
    with pytest.raises(NumericsError, match="cannot be told"):
        expected_best(scores, k)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory):
    return make_tiny_world(tmp_path_factory.mktemp("world") / "tiny")


@pytest.fixture
def runtime_of(world, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "best_of_n_scorer.py").write_text(
        "def score(p, r):\n    return [float('nan') if x.endswith('.') else len(x) for x in r]\n"
    )

    def make(**rejection):
        rollout = {"max_new_tokens": 8, "batch_size": 7, "rejection": rejection}
        reward = {"scorer": "callable", "callable": {"path": "best_of_n_scorer:score"}}
        return make_stage_runtime(tmp_path / "home", world, rollout=rollout, reward=reward)

    return make


def test_the_best_of_each_prompt_is_kept_as_rows_that_sft_reads(runtime_of, tmp_path):
    runtime, policy = runtime_of(policy="penalise", banned_patterns=["[aeiou]$"])
    out = tmp_path / "out"
    found = run_best_of_n(runtime, policy, out, n=4, prompts=5, pool="train")
    samples = read_table(out / SAMPLES)
    assert set(samples["prompt_id"]) <= set(prompt_pool(runtime.folder)["prompt_id"].head(5))
    assert 0 < len(samples) < 20 and not samples["response"].str.contains("[aeiou]$").any()
    rows = load_rows(SourceConfig(path=KEPT), out, required=["prompt", "response"])
    best = {
        prompt: group.loc[group["reward_raw"].idxmax(), "response"]
        for prompt, group in samples.groupby("prompt", sort=False)
    }
    assert dict(zip(rows["prompt"], rows["response"], strict=True)) == best
    assert json.loads((out / KEPT).read_text().splitlines()[0])["n"] == 4
    assert DataConfig(prompts=(SourceConfig(path="p"),), sft=(SourceConfig(path=str(out / KEPT)),))
    again = run_best_of_n(runtime, policy, tmp_path / "other", n=4, prompts=5, pool="train")
    assert again.kept["response"].tolist() == found.kept["response"].tolist()


def test_the_curve_of_held_out_prompts_rises_from_the_mean_to_the_best(runtime_of, tmp_path):
    runtime, policy = runtime_of()
    found = run_best_of_n(runtime, policy, tmp_path / "out", n=3, prompts=6, pool="held_out")
    assert set(found.samples["prompt_id"]) <= set(held_out_prompts(runtime.folder)["prompt_id"])
    curve = read_json(tmp_path / "out" / CURVE)["expected_best"]
    groups = [group for _, group in found.samples.dropna(subset="reward_raw").groupby("prompt_id") if len(group) == 3]
    assert groups and curve == sorted(curve)
    assert curve[0] == pytest.approx(fmean(group["reward_raw"].mean() for group in groups))
    assert curve[2] == pytest.approx(fmean(group["reward_raw"].max() for group in groups))


def test_nothing_that_can_be_kept_and_numbers_below_one_are_errors(runtime_of, tmp_path):
    runtime, policy = runtime_of(policy="drop", banned_patterns=["^"])
    with pytest.raises(CannotLearn, match="none of 4 responses passed the filters"):
        run_best_of_n(runtime, policy, tmp_path / "out", n=2, prompts=2, pool="train")
    with pytest.raises(ConfigError, match="both must be 1 or more"):
        run_best_of_n(runtime, policy, tmp_path / "out", n=0, prompts=2, pool="train")
    assert not (tmp_path / "out").exists()
