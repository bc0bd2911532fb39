from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.errors import NumericsError
from rlhf_core.numerics.advantages import generalized_advantages

unit, number = st.floats(0.0, 1.0), st.floats(-10.0, 10.0)
responses = st.lists(st.lists(st.tuples(number, number), min_size=1, max_size=6), min_size=1, max_size=4)


def pad_right(rows, fill, extra=0):
    width = max(map(len, rows)) + extra
    rewards, values = torch.full((2, len(rows), width), fill, dtype=torch.float64)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        for t, (reward, value) in enumerate(row):
            rewards[i, t], values[i, t], mask[i, t] = reward, value, True
    return rewards, values, mask


def definition(steps: list[tuple[float, float]], bootstrap: float, discount: float, gae_lambda: float) -> list[float]:
    """Oracle: A_t = Σ_k (γλ)^k δ_{t+k} as the paper defines it; floats, no mask, no recursion."""
    values = [value for _, value in steps] + [bootstrap]
    deltas = [reward + discount * values[t + 1] - values[t] for t, (reward, _) in enumerate(steps)]
    return [sum((discount * gae_lambda) ** k * d for k, d in enumerate(deltas[t:])) for t in range(len(deltas))]


@given(responses, number, unit, unit)
def test_advantages_match_the_definition_whatever_the_padding_holds(rows, bootstrap, discount, gae_lambda):
    rewards, values, mask = pad_right(rows, fill=float("nan"))
    after = torch.full((len(rows),), bootstrap, dtype=values.dtype)
    advantages, _ = generalized_advantages(rewards, values, after, mask, discount=discount, gae_lambda=gae_lambda)
    for row, got, kept in zip(rows, advantages, mask, strict=True):
        want = torch.tensor(definition(row, bootstrap, discount, gae_lambda), dtype=torch.float64)
        torch.testing.assert_close(got[kept], want, rtol=1e-9, atol=1e-9)
        assert not got[~kept].any()


@given(responses)
def test_undiscounted_monte_carlo_returns_do_not_depend_on_the_critic(rows):
    rewards, values, mask = pad_right(rows, fill=0.0)
    _, returns = generalized_advantages(
        rewards, values, values.new_zeros(len(rows)), mask, discount=1.0, gae_lambda=1.0
    )
    rewards_to_go = rewards.flip(1).cumsum(1).flip(1)
    torch.testing.assert_close(returns[mask], rewards_to_go[mask], rtol=1e-9, atol=1e-9)


@given(responses, st.lists(unit, min_size=4, max_size=4), unit)
def test_a_lambda_per_response_is_that_response_alone_with_its_lambda(rows, lambdas, discount):
    rewards, values, mask = pad_right(rows, fill=0.0)
    after = values.new_ones(len(rows))
    mixed = torch.tensor(lambdas[: len(rows)], dtype=torch.float64)
    together = generalized_advantages(rewards, values, after, mask, discount=discount, gae_lambda=mixed)
    for i, one in enumerate(lambdas[: len(rows)]):
        row = slice(i, i + 1)
        alone = generalized_advantages(
            rewards[row], values[row], after[row], mask[row], discount=discount, gae_lambda=one
        )
        for many, few in zip(together, alone, strict=True):
            torch.testing.assert_close(many[row], few, rtol=1e-12, atol=1e-12)


def test_a_lambda_per_response_keeps_the_dtype_of_the_rewards():
    x, mask = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)
    lambdas = torch.tensor([0.9, 0.5], dtype=torch.float64)
    advantages, returns = generalized_advantages(x, x, torch.zeros(2), mask, discount=1.0, gae_lambda=lambdas)
    assert (advantages.dtype, returns.dtype) == (torch.float32, torch.float32)


def test_case_E09_extra_padding_changes_nothing():
    rows = [[(1.0, 0.5), (2.0, -0.5)], [(0.3, 0.1)]]
    bootstrap = torch.tensor([0.0, 0.7], dtype=torch.float64)
    narrow, wide = (
        generalized_advantages(rewards, values, bootstrap, mask, discount=1.0, gae_lambda=0.95)
        for rewards, values, mask in (pad_right(rows, 0.0), pad_right(rows, float("nan"), extra=64))
    )
    for few, many in zip(narrow, wide, strict=True):
        assert torch.equal(few, many[:, :2])
        assert not many[:, 2:].any()


def test_an_empty_response_and_an_empty_batch_get_zeros():
    mask = torch.tensor([[False, False], [True, False]])
    x = torch.tensor([[float("nan")] * 2, [1.0, float("nan")]])
    bootstrap = torch.tensor([float("nan"), 0.0])
    advantages, returns = generalized_advantages(x, x, bootstrap, mask, discount=1.0, gae_lambda=1.0)
    assert advantages.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert returns.tolist() == [[0.0, 0.0], [1.0, 0.0]]
    none = torch.empty(2, 0)
    assert generalized_advantages(none, none, bootstrap, none.bool(), discount=1.0, gae_lambda=1.0)[0].shape == (2, 0)


@pytest.mark.parametrize("broken", ["rewards", "values", "bootstrap_values"])
def test_a_number_that_is_none_is_refused_by_name(broken):
    tensors = {"rewards": torch.zeros(1, 2), "values": torch.zeros(1, 2), "bootstrap_values": torch.zeros(1)}
    tensors[broken][...] = float("inf")
    with pytest.raises(NumericsError, match=broken):
        generalized_advantages(
            **tensors, response_mask=torch.ones(1, 2, dtype=torch.bool), discount=1.0, gae_lambda=0.9
        )
