"""Each algorithm's advantages, worked by hand from the same token rewards."""

from __future__ import annotations

import pytest
import torch

from rlhf_core.config.algorithm import AlgorithmConfig
from rlhf_core.experience.estimators import CriticsView, Decay, estimate_advantages

MASK = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
REWARDS = torch.tensor([[-0.5, 2.5, 9.0], [4.0, 9.0, 9.0], [1.0, 1.0, 4.0]])
"""Sums 2, 4 and 6 over response tokens; 9 stands at padding."""
GROUPS = torch.tensor([7, 7, 7])
CRITIC = CriticsView(
    values=torch.tensor([[1.0, 2.0, 9.0], [3.0, 9.0, 9.0], [0.0, 1.0, 2.0]]), bootstrap_values=torch.zeros(3)
)


def estimated(kind: str, discount: float = 1.0, chunk_tokens: int | None = None, **options):
    decay = Decay(discount, 0.5, chunk_tokens)
    return estimate_advantages(REWARDS, CRITIC, MASK, GROUPS, AlgorithmConfig(kind=kind, **options), decay)


@pytest.mark.parametrize(
    ("kind", "options", "by_row"),
    [
        ("rloo", {}, [2 - 5, 4 - 4, 6 - 3]),
        ("grpo", {"scale_by_group_std": False}, [-2, 0, 2]),
        ("grpo", {}, [-(1.5**0.5), 0, 1.5**0.5]),
        ("grpo", {"scale_by_group_std": False, "group_baseline": "leave_one_out"}, [-3, 0, 3]),
    ],
)
def test_group_methods_give_every_token_its_responses_difference_to_the_group(kind, options, by_row):
    advantages, returns = estimated(kind, **options)
    expected = torch.tensor(by_row, dtype=torch.float32)[:, None] * MASK
    torch.testing.assert_close(advantages, expected)
    torch.testing.assert_close(returns, expected)


def test_reinforce_plus_plus_sums_the_discounted_rewards_to_come_and_ignores_the_critic():
    advantages, returns = estimated("reinforce_plus_plus", discount=0.5)
    expected = torch.tensor([[-0.5 + 1.25, 2.5, 0.0], [4.0, 0.0, 0.0], [1.0 + 0.5 + 1.0, 1.0 + 2.0, 4.0]])
    torch.testing.assert_close(advantages, expected)
    torch.testing.assert_close(returns, expected)


def test_ppo_trusts_the_critic_as_far_as_lambda_says():
    advantages, returns = estimated("ppo")
    last = torch.tensor([2.5 - 2.0, 4.0 - 3.0, 4.0 - 2.0])
    assert [advantages[0, 1], advantages[1, 0], advantages[2, 2]] == last.tolist()
    assert advantages[0, 0] == pytest.approx(-0.5 + 2.0 - 1.0 + 0.5 * 0.5)
    torch.testing.assert_close(returns, advantages + CRITIC.values * MASK)


def test_the_order_of_rows_changes_nothing():
    order = torch.tensor([2, 0, 1])
    config = AlgorithmConfig(kind="grpo")
    shuffled, _ = estimate_advantages(REWARDS[order], CRITIC, MASK[order], GROUPS, config, Decay(1.0, 1.0))
    torch.testing.assert_close(shuffled, estimated("grpo")[0][order])


@pytest.mark.parametrize("kind", ["ppo", "reinforce_plus_plus"])
def test_chunks_change_nothing(kind):
    for whole, chunked in zip(estimated(kind, 0.9), estimated(kind, 0.9, chunk_tokens=2), strict=True):
        torch.testing.assert_close(chunked, whole)
