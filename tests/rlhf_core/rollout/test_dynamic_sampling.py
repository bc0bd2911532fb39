"""Uniform groups are drawn again, bounded, and a run without any difference says so."""

from __future__ import annotations

import pandas as pd
import pytest

from rlhf_core.config.rollout import RolloutConfig
from rlhf_core.engines.protocols import Generation, GenerationRequest, Sampling
from rlhf_core.errors import CannotLearn
from rlhf_core.rollout.dynamic_sampling import sample_informative_groups
from rlhf_core.rollout.filters import FilterChain, rule_filters
from rlhf_core.rollout.rejection import Rejecter
from rlhf_core.rollout.replacement import Replies
from rlhf_core.rollout.sampling import Place, SampleOrigin, Sampler

EOS = 9


class Digits:
    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return " ".join(str(i) for i in ids if i != EOS)


class Seeded:
    """Answers with the parity of the seed, so that groups of two are uniform half of the time."""

    def __init__(self) -> None:
        self.requests: list[GenerationRequest] = []

    def generate(self, requests: list[GenerationRequest], sampling: Sampling) -> list[Generation]:
        self.requests += requests
        return [Generation((request.seed % 2, 2, 3, EOS), (-1.0,) * 4, "eos") for request in requests]


def sampled(score, *, prompts: int = 8, samples: int = 2, max_attempts: int = 20):
    engine = Seeded()
    sampler = Sampler(engine, Digits(), RolloutConfig(), SampleOrigin(run_seed=3, iteration=1, policy_step=0))
    rejecter = Rejecter(FilterChain(rule_filters(sampler.config.rejection)), Replies(("No.",), {}, Digits(), 3))
    places = [
        Place({"prompt_id": f"p{i}", "domain": "d", "prompt": "?", "prompt_ids": [1]}, sample)
        for i in range(prompts)
        for sample in range(samples)
    ]
    return engine, *sample_informative_groups(sampler, places, rejecter, score, max_attempts=max_attempts)


def by_first_digit(rows: pd.DataFrame) -> list[float]:
    return [float(ids[0]) for ids in rows["response_ids"]]


def test_every_group_ends_with_a_difference_and_rows_keep_the_order_of_prompts():
    engine, found, metrics = sampled(by_first_digit)
    assert found.kept["prompt_id"].tolist() == [f"p{i}" for i in range(8) for _ in range(2)]
    for _, group in found.kept.groupby("prompt_id"):
        assert {ids[0] for ids in group["response_ids"]} == {0, 1}
    assert metrics["rollout/uniform_group_fraction_first"] > 0
    assert metrics["rollout/uniform_group_fraction"] == 0
    assert len({request.seed for request in engine.requests}) == len(engine.requests)


def test_groups_that_differ_are_not_drawn_again():
    engine, _, metrics = sampled(lambda rows: list(range(len(rows))))
    assert len(engine.requests) == 16
    assert metrics["rollout/dynamic_sampling_tries"] == 0


def test_case_K09_groups_that_stay_uniform_end_after_bounded_tries_with_a_diagnosis():
    calls: list[int] = []

    def constant(rows: pd.DataFrame) -> list[float]:
        calls.append(len(rows))
        return [0.7] * len(rows)

    with pytest.raises(
        CannotLearn, match=r"after 3 further tries the rewards within each of the 8 groups are all equal"
    ):
        sampled(constant, max_attempts=3)
    assert calls == [16] * 4


def test_a_group_that_stays_uniform_beside_others_is_kept():
    def score(rows: pd.DataFrame) -> list[float]:
        return [0.0 if prompt == "p0" else float(i) for i, prompt in enumerate(rows["prompt_id"])]

    _, found, metrics = sampled(score, max_attempts=2)
    assert len(found.kept) == 16
    assert metrics["rollout/uniform_group_fraction"] == pytest.approx(1 / 8)
    assert found.kept["sample_index"].tolist()[:2] == [4, 5]
