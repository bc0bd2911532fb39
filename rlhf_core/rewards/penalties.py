"""Penalties in units of the normalised reward, added after it (R5)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def ending_penalties(
    endings: Sequence[str], *, early_penalty: float, truncation_penalty: float
) -> Float[Tensor, " batch"]:
    """Return what to add to each normalised reward for how its response ended; float64, 0 for a natural end.

    Add it after normalisation and clipping, so that a penalty keeps its size whatever the scorer's scale.

    Args:
        endings: `natural`, `early` or `truncated`, one per response.
        early_penalty: added where EOS came too soon.
        truncation_penalty: added where the length limit cut the response; 0 unless the policy is `penalty`.
    """
    penalty = {"natural": 0.0, "early": early_penalty, "truncated": truncation_penalty}
    return torch.tensor([penalty[ending] for ending in endings], dtype=torch.float64)


def matches_any(responses: Sequence[str], patterns: Sequence[str]) -> Bool[Tensor, " batch"]:
    """Return True where a response matches one of the regular expressions, in any case of letters."""
    compiled = [re.compile(pattern, re.IGNORECASE) for pattern in patterns]
    return torch.tensor([any(found.search(text) for found in compiled) for text in responses], dtype=torch.bool)
