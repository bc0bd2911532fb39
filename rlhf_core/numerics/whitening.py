"""Whitening of advantages over the valid tokens of all ranks (A3)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.numerics.reductions import EPSILON, AllReduce, global_moments, identity


def whiten(
    x: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], all_reduce: AllReduce = identity
) -> Float[Tensor, "*shape"]:
    """Return `(x - mean) / (std + 1e-8)` under the mask and 0 elsewhere, in x's dtype.

    Mean and population variance are those of all ranks. One value, equal values and no value give 0 (N11, N04).
    """
    moments = global_moments(x, mask, all_reduce)
    whitened = (x.to(torch.float64) - moments.mean) / (moments.std + EPSILON)
    return whitened.to(x.dtype).masked_fill(~mask, 0.0)


def scale_to_unit_variance(
    x: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], all_reduce: AllReduce = identity
) -> Float[Tensor, "*shape"]:
    """Return `x / (std + 1e-8)` under the mask and 0 elsewhere: the mean, so scaled, stays.

    Values without spread (one value, equal values) have no scale to divide by and are returned as they are.
    """
    moments = global_moments(x, mask, all_reduce)
    divisor = 1.0 if moments.is_constant else moments.std + EPSILON
    return (x.to(torch.float64) / divisor).to(x.dtype).masked_fill(~mask, 0.0)
