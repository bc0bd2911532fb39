"""How tokens are averaged to a loss: over all tokens, or over the means of sequences (P9)."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def token_weights(
    response_mask: Bool[Tensor, "batch response"],
    mode: Literal["token", "sequence"],
    *,
    token_count: int | float,
    sequence_count: int | float,
) -> Float[Tensor, "batch response"]:
    """Return the weights w with which `Σ w·loss_t / token_count` is the wanted mean, in float64; 0 at padding.

    `token` gives 1: every token counts alike, long responses more (DAPO, arXiv:2503.14476, eq. 12). `sequence` gives
    `token_count / (sequence_count × length)`: the mean over sequences of each one's mean over its tokens (GRPO,
    arXiv:2402.03300, eq. 3), where a token of a long response counts less.

    Both counts are of the whole mini-batch, over all its micro-batches and ranks. Then the losses of micro-batches,
    however they are cut, add up to the mini-batch's, and so do their gradients. Over a mini-batch the weights sum to
    `token_count`, so a coefficient beside the loss means the same in both modes.

    Args:
        response_mask: True at response tokens, of this micro-batch.
        mode: see above.
        token_count: response tokens of the mini-batch.
        sequence_count: its responses that have tokens; an empty one has no mean.
    """
    kept = response_mask.to(torch.float64)
    if mode == "token":
        return kept
    lengths = kept.sum(dim=1, keepdim=True).clamp(min=1)
    return kept * token_count / (max(1, sequence_count) * lengths)
