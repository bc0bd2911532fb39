"""Generalized advantage estimation over token rewards (A1)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.numerics.checks import require_finite


def generalized_advantages(
    rewards: Float[Tensor, "batch response"],
    values: Float[Tensor, "batch response"],
    bootstrap_values: Float[Tensor, " batch"],
    response_mask: Bool[Tensor, "batch response"],
    *,
    discount: float,
    gae_lambda: float | Float[Tensor, " batch"],
) -> tuple[Float[Tensor, "batch response"], Float[Tensor, "batch response"]]:
    """Return `(advantages, returns)`, both in reward units and both 0 at padding.

    Source: Schulman et al. 2016, arXiv:1506.02438, eq. 16. A response is an
    episode; what follows its last token is worth `bootstrap_values`.

    Args:
        rewards: reward of each token, after KL shaping.
        values: critic's estimate of the return from that token on.
        bootstrap_values: 0 where the response ended by itself; the critic's
            value after the last token where the length limit cut it.
        response_mask: True at response tokens, EOS included; a prefix of each row.
        discount: γ in [0, 1].
        gae_lambda: λ in [0, 1], one or one a response (A4); 0 trusts the critic, 1 trusts the sampled rewards.

    Raises:
        NumericsError: a reward or value at a response token, or what follows a response, is NaN or infinite.
    """
    td_errors, values = temporal_differences(rewards, values, bootstrap_values, response_mask, discount=discount)
    decay = discount * (gae_lambda.to(td_errors) if isinstance(gae_lambda, Tensor) else gae_lambda)
    advantages = torch.empty_like(td_errors)
    following = td_errors.new_zeros(td_errors.shape[0])
    for t in reversed(range(td_errors.shape[1])):
        following = td_errors[:, t] + decay * following
        advantages[:, t] = following
    return advantages, advantages + values


def temporal_differences(
    rewards: Float[Tensor, "batch response"],
    values: Float[Tensor, "batch response"],
    bootstrap_values: Float[Tensor, " batch"],
    response_mask: Bool[Tensor, "batch response"],
    *,
    discount: float,
) -> tuple[Float[Tensor, "batch response"], Float[Tensor, "batch response"]]:
    """Return `(δ, values)`: `δ_t = r_t + γ·V_{t+1} - V_t`, and the values; both 0 at padding.

    Arguments and errors are those of `generalized_advantages`.
    """
    require_finite("rewards", rewards, response_mask)
    require_finite("values", values, response_mask)
    has_tokens = response_mask.any(dim=1)
    require_finite("bootstrap_values", bootstrap_values, has_tokens)
    rewards = rewards.masked_fill(~response_mask, 0.0)
    values = values.masked_fill(~response_mask, 0.0)
    if not rewards.numel():
        return rewards, values
    last = (response_mask.sum(dim=1, keepdim=True) - 1).clamp(min=0)
    next_values = torch.nn.functional.pad(values[:, 1:], (0, 1)).scatter(1, last, bootstrap_values[:, None])
    return (rewards + discount * next_values - values).masked_fill(~response_mask, 0.0), values
