from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.errors import ConfigError, NumericsError
from rlhf_core.numerics.importance import truncated_importance_weights

NAN = float("nan")
tokens = st.lists(st.tuples(st.floats(-20, 0), st.floats(-20, 0)), min_size=1, max_size=8)


def weights_of(rows, *, cap=2.0, padding=()):
    table = torch.tensor([*rows, *padding], dtype=torch.float64).reshape(-1, 2)
    mask = torch.arange(len(table)) < len(rows)
    return truncated_importance_weights(table[:, 0], table[:, 1], mask, cap=cap)


@given(tokens, st.floats(1, 10))
def test_weights_and_metrics_match_the_definition(rows, cap):
    weights, metrics = weights_of(rows, cap=cap)
    ratios = [math.exp(old - engine) for old, engine in rows]
    want = [min(ratio, cap) for ratio in ratios]
    assert weights.tolist() == pytest.approx(want, rel=1e-9)
    assert metrics["experience/importance_weight_mean"] == pytest.approx(sum(want) / len(rows), rel=1e-9)
    clearly = [ratio > cap * (1 + 1e-9) for ratio in ratios]
    at_most = [ratio > cap * (1 - 1e-9) for ratio in ratios]
    share = metrics["experience/importance_capped_fraction"]
    assert sum(clearly) / len(rows) - 1e-12 <= share <= sum(at_most) / len(rows) + 1e-12


@given(tokens)
def test_case_N01_padding_has_weight_one_and_changes_nothing(rows):
    weights, metrics = weights_of(rows)
    padded, padded_metrics = weights_of(rows, padding=[(NAN, 0.0), (0.0, float("-inf"))])
    assert padded.tolist() == [*weights.tolist(), 1.0, 1.0]
    assert padded_metrics == pytest.approx(metrics, rel=1e-12)


def test_the_mean_over_the_engines_samples_becomes_the_trainers():
    """Every token of a vocabulary of three, weighed by the engine's chance of it."""
    engine = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    trainer = torch.tensor([0.4, 0.35, 0.25], dtype=torch.float64)
    advantages = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    weights, _ = truncated_importance_weights(trainer.log(), engine.log(), torch.ones(3, dtype=torch.bool), cap=2.0)
    assert (engine * weights * advantages).sum().item() == pytest.approx((trainer * advantages).sum().item())


def test_weights_carry_no_gradient_and_a_huge_ratio_no_infinity():
    old = torch.tensor([0.0, -1.0], requires_grad=True)
    weights, metrics = truncated_importance_weights(
        old, torch.tensor([-2000.0, -1.0]), torch.ones(2, dtype=torch.bool), cap=2.0
    )
    assert not weights.requires_grad
    assert weights.tolist() == pytest.approx([2.0, 1.0])
    assert metrics["experience/importance_capped_fraction"] == 0.5


@pytest.mark.parametrize("cap", [0.0, 0.99, NAN, float("inf")])
def test_a_cap_that_would_weigh_everything_down_is_refused(cap):
    with pytest.raises(ConfigError, match="cap"):
        weights_of([(0.0, 0.0)], cap=cap)


@pytest.mark.parametrize(("row", "name"), [((NAN, 0.0), "old_logprobs"), ((0.0, float("-inf")), "engine_logprobs")])
def test_a_log_prob_that_is_no_number_is_refused_by_name(row, name):
    with pytest.raises(NumericsError, match=name):
        weights_of([row])
