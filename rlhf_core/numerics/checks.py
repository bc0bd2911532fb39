"""Refusal of NaN and infinity at the border of a calculation."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Num
from torch import Tensor

from rlhf_core.errors import NumericsError


def require_finite(name: str, tensor: Num[Tensor, "*shape"], mask: Bool[Tensor, "*shape"] | None = None) -> None:
    """Refuse a NaN or infinity, under the mask where one is given.

    Raises:
        NumericsError: names the tensor, how many values are bad, and the first one with its index.
    """
    bad = ~torch.isfinite(tensor)
    if mask is not None:
        bad = bad & mask
    if not bad.any():
        return
    places = bad.nonzero()
    first = tuple(places[0].tolist())
    raise NumericsError(
        f"{name} holds {len(places)} NaN or infinite values; the first is {tensor[first].item()} "
        f"at index {list(first)} of shape {list(tensor.shape)}. Look at the learning rate, the rewards and the model "
        "that made it; the run goes on from the last good checkpoint."
    )
