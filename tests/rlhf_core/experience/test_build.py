"""Experience worked by hand, and its laws."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
import torch

from rlhf_core.engines.protocols import RolloutEvaluation
from rlhf_core.errors import NumericsError
from rlhf_core.experience.build import Estimation, Judgement, build_experience, explained_variance, judgement
from tests.rlhf_core.engines.trainer_case import run_config

MASK = torch.tensor([[True, True, True, False], [True, True, False, False]])


def opinion(**changes: torch.Tensor) -> RolloutEvaluation:
    zeros = torch.zeros(2, 4)
    fields = {
        "logprobs": zeros - 1.0,
        "ref_logprobs": zeros - 1.0,
        "entropy_nats": zeros + 2.0,
        "kl_exact_nats": zeros,
        "values": zeros,
        "bootstrap_values": torch.tensor([5.0, 7.0]),
    }
    return RolloutEvaluation(**(fields | changes))


def built(
    evaluation=None,
    *,
    scores=(1.0, -1.0),
    endings=("natural", "natural"),
    ppo=None,
    reward=None,
    kl_coef=0.1,
):
    config = run_config(
        Path("none"),
        ppo={"gae_lambda": 1.0, "ptx": {"enabled": False}} | (ppo or {}),
        reward={"scorer": "callable", "callable": {"path": "math:sqrt"}} | (reward or {}),
    )
    how = Estimation(kl_coef=kl_coef, iteration=1, config=config)
    return build_experience(evaluation or opinion(), judgement(scores, endings, ["a", "a"]), MASK, how)


def test_without_kl_and_values_the_return_of_every_token_is_the_score():
    experience, _ = built()
    assert experience.rewards.tolist() == [[0, 0, 1, 0], [0, -1, 0, 0]]
    assert experience.returns.tolist() == [[1, 1, 1, 0], [-1, -1, 0, 0]]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("bootstrap", [6.0, 6.0, 6.0]), ("penalty", [1.0, 1.0, 1.0]), ("kl_only", [6.0, 6.0, 6.0])],
)
def test_case_A5_what_a_cut_response_is_worth_follows_the_policy(policy, expected):
    experience, _ = built(endings=("truncated", "natural"), reward={"truncated_policy": policy})
    assert experience.returns[0, :3].tolist() == expected
    assert experience.returns[1, :2].tolist() == [-1.0, -1.0]


def test_an_early_end_has_no_future():
    experience, _ = built(endings=("early", "early"))
    assert experience.returns[:, 0].tolist() == [1.0, -1.0]


def test_case_K05_the_penalty_uses_the_chosen_estimator_and_reports_it():
    evaluation = opinion(ref_logprobs=torch.full((2, 4), -1.5), kl_exact_nats=torch.full((2, 4), 0.3))
    expected = {"k1": 0.5, "k2": 0.125, "k3": 0.5 + 2.718281828459045**-0.5 - 1, "exact": 0.3}
    for estimator, kl in expected.items():
        ppo = {"kl_shaping": {"estimator": estimator, "token_limit_nats": None}}
        experience, metrics = built(evaluation, scores=(0.0, 0.0), ppo=ppo)
        assert experience.rewards[MASK].tolist() == pytest.approx([-0.1 * kl] * 5)
        assert metrics["experience/kl_penalty_nats"] == pytest.approx(kl)
        assert metrics["experience/kl_exact_nats"] == pytest.approx(0.3)
        assert metrics["experience/kl_k1_nats"] == pytest.approx(0.5)


def test_a_token_beyond_the_exact_limit_gets_the_fixed_reward():
    exact = torch.zeros(2, 4)
    exact[0, 1] = 0.6
    experience, metrics = built(opinion(kl_exact_nats=exact), scores=(0.0, 0.0))
    assert experience.rewards[0, 1] == -10.0
    assert metrics["experience/kl_limited_fraction"] == pytest.approx(1 / 5)


def test_advantages_are_whitened_over_response_tokens():
    experience, metrics = built()
    kept = experience.advantages[MASK]
    assert float(kept.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(kept.std(correction=0)) == pytest.approx(1.0, abs=1e-5)
    assert not experience.advantages[~MASK].any()
    assert metrics["experience/mean_abs_advantage"] == 1.0


def test_advantages_are_scaled_alone_or_left_as_they_are_where_asked():
    raw = [1.0, 1.0, 1.0, -1.0, -1.0]  # Without KL and values every token's advantage is the score.
    std = statistics.pstdev(raw)
    for mode, expected in (("none", raw), ("scale", [x / std for x in raw])):
        experience, metrics = built(ppo={"advantage_whitening": mode})
        assert experience.advantages[MASK].tolist() == pytest.approx(expected, abs=1e-6)
        assert not experience.advantages[~MASK].any()
        assert experience.returns[MASK].tolist() == raw and metrics["experience/mean_abs_advantage"] == 1.0


def test_case_N04_equal_rewards_give_advantages_of_zero():
    experience, _ = built(scores=(0.0, 0.0))
    assert not experience.advantages.any()


def test_padding_is_not_read():
    poison = torch.where(MASK, -1.0, float("nan"))
    clean, clean_metrics = built()
    experience, metrics = built(
        opinion(logprobs=poison, ref_logprobs=poison, values=torch.where(MASK, 0.0, float("nan")))
    )
    assert metrics == clean_metrics
    assert torch.equal(experience.advantages, clean.advantages)


def test_a_score_that_is_not_finite_is_refused():
    with pytest.raises(NumericsError, match="scores"):
        built(scores=(float("nan"), 0.0))


def test_explained_variance_of_a_perfect_a_constant_and_a_needless_critic():
    returns = torch.tensor([[1.0, 2.0, 3.0, 9.0], [4.0, 5.0, 9.0, 9.0]])
    assert explained_variance(returns.clone(), returns, MASK) == pytest.approx(1.0)
    assert explained_variance(torch.full_like(returns, 2.0), returns, MASK) == pytest.approx(0.0)
    assert explained_variance(returns, torch.ones(2, 4), MASK) == 0.0


def test_a_judgement_marks_the_truncated():
    judged = judgement([1.0, 2.0], ["truncated", "early"], ["a", "b"])
    assert isinstance(judged, Judgement)
    assert judged.is_truncated.tolist() == [True, False]


def test_fluency_is_the_references_mean_log_prob_of_the_responses():
    ref_logprobs = torch.tensor([[-1.0, -2.0, -3.0, 99.0], [-4.0, -5.0, 99.0, 99.0]])
    _, metrics = built(opinion(ref_logprobs=ref_logprobs))
    assert metrics["experience/fluency_nats"] == pytest.approx(-3.0)
