"""Advantages of each algorithm from the same token rewards (A1, A4, P9)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlhf_core.config.algorithm import AlgorithmConfig
from rlhf_core.numerics.advantages import generalized_advantages
from rlhf_core.numerics.chunked_advantages import GaeDecay, chunked_advantages
from rlhf_core.numerics.group_advantages import grpo_advantages, rloo_advantages


@dataclass(frozen=True)
class CriticsView:
    """What the critic says; all zero without one."""

    values: Tensor
    """`[batch, response]`, in reward units."""
    bootstrap_values: Tensor
    """`[batch]`: of what follows the last token; 0 where nothing does."""


@dataclass(frozen=True)
class Decay:
    """How far a reward reaches back."""

    discount: float
    """γ; the group methods do not discount."""
    gae_lambda: float | Tensor
    """λ, for all rows or `[batch]`; used by `ppo` alone."""
    chunk_tokens: int | None = None
    """Compute GAE in chunks of so many tokens (A2); None: token by token."""


def estimate_advantages(
    rewards: Float[Tensor, "batch response"],
    critic: CriticsView,
    response_mask: Bool[Tensor, "batch response"],
    group_ids: Int[Tensor, " batch"],
    algorithm: AlgorithmConfig,
    decay: Decay,
) -> tuple[Float[Tensor, "batch response"], Float[Tensor, "batch response"]]:
    """Return `(advantages, returns)` before whitening, 0 at padding; `returns = advantages + values`.

    `ppo`: GAE. `grpo` and `rloo`: the response's summed reward against its group, the same at each of its tokens.
    `reinforce_plus_plus`: discounted rewards to go (Hu 2025, arXiv:2501.03262).

    Args:
        rewards: per token, KL and score included.
        critic: the critic's values.
        response_mask: True at response tokens.
        group_ids: the prompt of each row, any integers.
        algorithm: which, and its options.
        decay: γ, λ and the size of chunks.

    Raises:
        NumericsError: a reward or value at a response token is NaN or infinite.
    """
    if algorithm.kind in ("grpo", "rloo"):
        advantages = _by_group(rewards, response_mask, group_ids, algorithm)
        return advantages, advantages.clone()
    values, bootstrap_values, gae_lambda = critic.values, critic.bootstrap_values, decay.gae_lambda
    if algorithm.kind == "reinforce_plus_plus":
        values, bootstrap_values, gae_lambda = torch.zeros_like(rewards), torch.zeros_like(bootstrap_values), 1.0
    if decay.chunk_tokens is not None:
        return chunked_advantages(
            rewards,
            values,
            bootstrap_values,
            response_mask,
            decay=GaeDecay(decay.discount, gae_lambda),
            chunk_tokens=decay.chunk_tokens,
        )
    return generalized_advantages(
        rewards, values, bootstrap_values, response_mask, discount=decay.discount, gae_lambda=gae_lambda
    )


def _by_group(
    rewards: Tensor, response_mask: Tensor, group_ids: Tensor, algorithm: AlgorithmConfig
) -> Float[Tensor, "batch response"]:
    totals = rewards.masked_fill(~response_mask, 0.0).to(torch.float64).sum(dim=1)
    included = response_mask.any(dim=1)
    if algorithm.kind == "rloo":
        by_row = rloo_advantages(totals, group_ids, included)
    else:
        by_row = grpo_advantages(
            totals,
            group_ids,
            included,
            scale="std" if algorithm.scale_by_group_std else "none",
            baseline=algorithm.group_baseline,
        )
    return by_row[:, None].to(rewards.dtype).expand_as(rewards).masked_fill(~response_mask, 0.0)
