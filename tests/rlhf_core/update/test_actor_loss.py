"""The actor's loss from its parts, against the formulas written out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_core.data.refs import ControlState
from rlhf_core.numerics.policy_loss import PolicyClip
from rlhf_core.update.actor_loss import ActorBatch, ActorLossSettings, actor_loss, actor_loss_settings
from tests.rlhf_core.engines.trainer_case import ppo, run_config

LOGPROBS, OLD, REF = [-1.0, -2.0, -0.5], [-1.1, -1.6, -0.5], [-1.2, -2.5, -0.1]
ADVANTAGES, ENTROPY = [1.0, -2.0, 0.5], [0.3, 0.6, 0.9]
PLAIN = ActorLossSettings(clip=PolicyClip(0.2), entropy_coef=0.0, kl_coef=0.0, kl_estimator="k2", reverse_kl_coef=0.0)


def loss_of(settings: ActorLossSettings, *, importance=(1.0, 1.0, 1.0), shares=(1.0, 1.0, 1.0)) -> float:
    columns = [
        torch.tensor(c, dtype=torch.float64) for c in (LOGPROBS, ENTROPY, OLD, REF, ADVANTAGES, importance, shares)
    ]
    return float(actor_loss(ActorBatch(*columns), settings, token_count=6)[0])


def objective(weights: list[float], low: float = 0.8, high: float = 1.2) -> float:
    terms = []
    for new, old, advantage, weight in zip(LOGPROBS, OLD, ADVANTAGES, weights, strict=True):
        ratio = math.exp(new - old)
        terms.append(weight * min(ratio * advantage, max(low, min(high, ratio)) * advantage))
    return -sum(terms) / 6


def replaced(**changes: Any) -> ActorLossSettings:
    return ActorLossSettings(**(vars(PLAIN) | changes))


def test_importance_and_shares_weigh_each_tokens_objective():
    assert loss_of(PLAIN) == pytest.approx(objective([1, 1, 1]), rel=1e-12)
    found = loss_of(PLAIN, importance=(0.5, 2.0, 1.0), shares=(3.0, 1.0, 0.5))
    assert found == pytest.approx(objective([1.5, 2.0, 0.5]), rel=1e-12)


def test_entropy_and_both_kls_are_added_with_their_coefficients_and_shares_but_not_the_importance():
    shares, importance = (3.0, 1.0, 0.5), (0.5, 2.0, 1.0)
    base = loss_of(PLAIN, importance=importance, shares=shares)
    entropy = sum(s * e for s, e in zip(shares, ENTROPY, strict=True)) / 6
    k2 = sum(s * (p - r) ** 2 / 2 for s, p, r in zip(shares, LOGPROBS, REF, strict=True)) / 6
    ratios = [math.exp(r - p) for p, r in zip(LOGPROBS, REF, strict=True)]
    reverse = sum(s * (x * math.log(x) - x + 1) for s, x in zip(shares, ratios, strict=True)) / 6
    for changes, term in (
        ({"entropy_coef": 0.1}, -0.1 * entropy),
        ({"kl_coef": 0.3}, 0.3 * k2),
        ({"reverse_kl_coef": 0.05}, 0.05 * reverse),
    ):
        found = loss_of(replaced(**changes), importance=importance, shares=shares)
        assert found == pytest.approx(base + term, rel=1e-9), changes


def settings_of(algorithm: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **changes: Any):
    config = run_config(
        Path("none"),
        model={"policy": "none"} | (model or {}),
        algorithm=algorithm or {},
        rollout={"samples_per_prompt": 4},
        ppo=ppo(**changes),
    )
    control = ControlState(kl_coef=0.2, kl_average_nats=0.03, ptx_coef=0.0)
    return actor_loss_settings(config, control, vocab_size=1000)


def test_beta_acts_in_the_loss_where_the_algorithm_puts_it_there_beside_the_fixed_coefficient():
    assert settings_of().kl_coef == pytest.approx(0.001)
    assert settings_of(model={"start": "base"}).kl_coef == 0.0
    assert settings_of({"kind": "grpo"}).kl_coef == pytest.approx(0.201)
    assert settings_of({"kind": "grpo", "kl_placement": "reward"}, loss_kl={"coef": 0.0}).kl_coef == 0.0
    assert settings_of({"kl_placement": "loss"}, loss_kl={"coef": 0.0}).kl_coef == pytest.approx(0.2)


def test_the_clip_range_follows_the_moving_average_of_kl():
    factor = 1 + math.tanh(-(0.03 - 0.01))
    assert settings_of(clip_range=0.3).clip.bounds == pytest.approx((0.7, 1.3))
    narrow = settings_of(clip_range=0.3, clip_range_high=0.4, clip_range_policy="narrow").clip
    assert narrow.bounds == pytest.approx((1 - 0.3 * factor, 1 + 0.4 * factor))
    assert settings_of(clip_range_policy="widen").clip.bounds[1] > 1.2


def test_the_entropy_rule_grows_with_the_vocabulary():
    assert settings_of(entropy_coef="log_vocab").entropy_coef == pytest.approx(0.01 * math.log(1000))
    assert settings_of(entropy_coef=0.02).entropy_coef == 0.02
