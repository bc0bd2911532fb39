"""The critic's clipped loss (A6)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.numerics.masking import masked_sum


def clipped_value_loss(
    values: Float[Tensor, "*shape"],
    old_values: Float[Tensor, "*shape"],
    returns: Float[Tensor, "*shape"],
    response_mask: Bool[Tensor, "*shape"],
    *,
    value_clip_range: float,
    token_count: int | float,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """Return `(loss, metrics)`: half the larger squared error of the value and of the value clipped around the old one.

    Source: OpenAI baselines, ppo2. Summed over this micro-batch and divided by the mini-batch's `token_count`, so that
    micro-batches add up; so are the metrics, detached float64 scalars. What the mask hides reaches nothing.

    Args:
        values: of the critic that is trained; reward units.
        old_values: of the critic before this update.
        returns: the targets.
        response_mask: True at response tokens.
        value_clip_range: how far a value may move from the old one before it gains nothing; reward units.
        token_count: response tokens of the whole mini-batch, over all its micro-batches (and ranks).
    """
    values = values.masked_fill(~response_mask, 0.0)
    old_values = old_values.detach().masked_fill(~response_mask, 0.0)
    returns = returns.detach().masked_fill(~response_mask, 0.0)
    is_beyond = (values - old_values).detach().abs() > value_clip_range
    clipped = old_values + (values - old_values).clamp(-value_clip_range, value_clip_range)
    errors, clipped_errors = (values - returns).square(), (clipped - returns).square()
    loss = 0.5 * masked_sum(torch.maximum(errors, clipped_errors), response_mask) / token_count
    per_token = {
        # Where nothing was clipped the two errors differ by rounding alone.
        "update/value_clip_fraction": is_beyond & (clipped_errors > errors),
        "update/value_squared_error": errors,
        "update/value_mean": values,
    }
    metrics = {
        name: masked_sum(x.detach().to(torch.float64), response_mask) / token_count for name, x in per_token.items()
    }
    metrics["update/value_loss"] = loss.detach().to(torch.float64)
    return loss, metrics
