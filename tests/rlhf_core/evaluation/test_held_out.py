"""Held-out samples, their statistics and the paired gain."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from rlhf_core.config.evaluation import EvaluationConfig
from rlhf_core.config.rollout import RolloutConfig
from rlhf_core.engines.protocols import Generation
from rlhf_core.evaluation.held_out import paired_gain, reward_statistics, sample_held_out, scored

PROMPTS = pd.DataFrame(
    {"prompt_id": ["p0", "p1", "p2"], "domain": "d", "prompt": ["a", "b", "c"], "prompt_ids": [[1], [2], [3]]}
)


class Echo:
    """An engine that answers with the seed's last digit."""

    def __init__(self):
        self.requests = []

    def generate(self, requests, sampling):
        self.requests += requests
        return [Generation((request.seed % 10,), (0.0,), "eos") for request in requests]


class Digits:
    def decode(self, ids, skip_special_tokens):
        return " ".join(map(str, ids))


def sampled(count: int, seed: int = 1) -> tuple[pd.DataFrame, Echo]:
    engine = Echo()
    evaluation = EvaluationConfig(held_out_rollouts=count, seed=seed)
    return sample_held_out(engine, Digits(), PROMPTS, RolloutConfig(), evaluation), engine


def test_prompts_take_turns_and_each_sample_has_its_own_seed():
    frame, engine = sampled(7)
    assert frame["prompt_id"].tolist() == ["p0", "p1", "p2", "p0", "p1", "p2", "p0"]
    assert frame["sample_index"].tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert len({request.seed for request in engine.requests}) == 7
    assert frame["response"].tolist() == [str(request.seed % 10) for request in engine.requests]


def test_seeds_follow_the_evaluation_seed_alone():
    (one, first), (two, second), (_, other) = sampled(5), sampled(5), sampled(5, seed=2)
    assert one.equals(two) and first.requests == second.requests
    assert all(a.seed != b.seed for a, b in zip(first.requests, other.requests, strict=True))


def test_fewer_rollouts_than_prompts_use_the_first_prompts():
    assert sampled(2)[0]["prompt_id"].tolist() == ["p0", "p1"]


def test_a_missing_score_is_nan_and_stays_out_of_the_statistics():
    class Scorer:
        def score(self, rows):
            return [1.0, None, 3.0]

    frame = scored(sampled(3)[0], Scorer(), scores_truncated=True)
    assert math.isnan(frame["reward_raw"][1])
    assert reward_statistics(frame["reward_raw"].to_numpy()) == (2.0, 1.0)
    assert all(math.isnan(value) for value in reward_statistics(np.array([math.nan, math.inf])))


def test_a_limit_clips_the_finite_rewards_of_the_statistics():
    rewards = np.array([-9.0, 1.0, 9.0, math.inf, math.nan])
    assert reward_statistics(rewards, 3.0) == reward_statistics(np.array([-3.0, 1.0, 3.0]))


def test_case_A5_a_cut_response_is_not_scored_unless_told_to():
    class Scorer:
        def score(self, rows):
            return [float(len(row["prompt"])) for row in rows]

    frame = sampled(3)[0].assign(finish_reason=["length", "stop", "length"])
    found = scored(frame, Scorer(), scores_truncated=False)["reward_raw"]
    assert math.isnan(found[0]) and found[1] == 1.0 and math.isnan(found[2])
    assert scored(frame, Scorer(), scores_truncated=True)["reward_raw"].tolist() == [1.0] * 3
    assert scored(frame.iloc[[0]], Scorer(), scores_truncated=False)["reward_raw"].isna().all()


def rewards(values: list[float]) -> pd.DataFrame:
    ids = [f"p{place // 2}" for place in range(len(values))]
    return pd.DataFrame({"prompt_id": ids, "sample_index": [n % 2 for n in range(len(values))], "reward_raw": values})


def test_the_gain_is_the_rise_in_standard_deviations_of_the_baseline():
    before = rewards([0.0, 2.0, 4.0, 6.0])
    gain = paired_gain(before, rewards([1.0, 3.0, 5.0, 7.0]), confidence=0.95, seed=0)
    assert (gain.value, gain.low, gain.high) == pytest.approx((1 / 5**0.5,) * 3)


def test_the_gain_pairs_prompts_and_leaves_out_what_is_not_finite():
    before = rewards([0.0, 2.0, 4.0, math.nan])
    after = rewards([1.0, 5.0, math.inf, 9.0])
    gain = paired_gain(before, after.iloc[::-1], confidence=0.95, seed=0)
    assert gain.value == pytest.approx(2.0)
    assert gain.low == gain.high == pytest.approx(2.0)  # one prompt is left: drawing it anew changes nothing


def test_equal_baseline_rewards_give_a_finite_gain_and_no_reward_gives_none():
    assert paired_gain(rewards([1.0] * 4), rewards([1.0] * 4), confidence=0.95, seed=0).value == 0.0
    assert math.isfinite(paired_gain(rewards([1.0] * 4), rewards([2.0] * 4), confidence=0.95, seed=0).value)
    assert math.isnan(paired_gain(rewards([1.0]), rewards([math.nan]), confidence=0.95, seed=0).value)


def test_the_interval_covers_the_true_gain_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for seed in range(60):
        base = rng.normal(size=100)
        before, after = rewards(base.tolist()), rewards((base + rng.normal(0.5, 1.0, size=100)).tolist())
        gain = paired_gain(before, after, confidence=0.9, seed=seed)
        hits += gain.low * base.std() <= 0.5 <= gain.high * base.std()
    assert 45 <= hits <= 60
