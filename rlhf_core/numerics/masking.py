"""Masks made from lengths, and reductions that never read what a mask hides."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def mask_from_lengths(lengths: Int[Tensor, " batch"], width: int) -> Bool[Tensor, "batch width"]:
    """Return True at the first `lengths[i]` places of row i; from lengths, never from ids (E02)."""
    return torch.arange(width, device=lengths.device)[None, :] < lengths[:, None]


def masked_sum(x: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Return the sum under the mask; what the mask hides, NaN too, reaches neither value nor gradient."""
    return x.masked_fill(~mask, 0.0).sum()


def masked_mean(x: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Return the mean under the mask, 0 where the mask is empty."""
    return masked_sum(x, mask) / mask.sum().clamp(min=1)


def last_token_index(mask: Bool[Tensor, "batch width"]) -> Int[Tensor, " batch"]:
    """Return the index of the last True of each row; 0 for an empty row, which the caller must mask out."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    return (positions * mask).amax(dim=1) if mask.shape[1] else mask.sum(dim=1)
