"""Value targets in standard deviations of the returns seen so far, so that the critic predicts small numbers (A6).

The state is a `RunningStats` (a dict by `state_dict`). Per iteration: the critic's outputs are turned into reward units
with the statistics that they were trained on; after the returns are known, `stats.including(returns, response_mask,
all_reduce)` is what this iteration's returns, and old values with them, are normalised with.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.numerics.running_stats import RunningStats

RETURN_STD_FLOOR = 1e-2
"""Least deviation that returns are divided by, in reward units: equal returns have none, and a hundredth of the unit
that rewards are normalised to is noise to the critic."""


def normalise_returns(
    returns: Float[Tensor, "*shape"], response_mask: Bool[Tensor, "*shape"], stats: RunningStats
) -> Float[Tensor, "*shape"]:
    """Return `(returns - mean) / max(std, 1e-2)` under the mask and 0 elsewhere, in the dtype of the returns.

    Also for values in reward units, as the old values of the clipped loss. Without statistics nothing changes.

    Args:
        returns: reward units.
        response_mask: True at response tokens.
        stats: of the returns so far, over all ranks.
    """
    mean, scale = _location_and_scale(stats)
    normalised = (returns.to(torch.float64) - mean) / scale
    return normalised.to(returns.dtype).masked_fill(~response_mask, 0.0)


def denormalise_values(values: Float[Tensor, "*shape"], stats: RunningStats) -> Float[Tensor, "*shape"]:
    """Return the critic's outputs in reward units, in their dtype: what `normalise_returns` undoes."""
    mean, scale = _location_and_scale(stats)
    return (values.to(torch.float64) * scale + mean).to(values.dtype)


def _location_and_scale(stats: RunningStats) -> tuple[float, float]:
    return (stats.mean, max(stats.std, RETURN_STD_FLOOR)) if stats.count else (0.0, 1.0)
