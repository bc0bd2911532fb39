"""Drawing one token a row from logits and a given uniform number."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def draw_tokens(
    logits: Float[Tensor, "rows vocab"], uniforms: Float[Tensor, " rows"], temperature: float
) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"], Float[Tensor, " rows"]]:
    """Return `(tokens, logprobs, totals)`; a row whose total is not finite has NaN or infinite logits.

    The token is the first whose cumulative probability exceeds the uniform number. The sum runs in float64, so that the
    draw depends on the row alone and not on how a kernel orders a float32 sum; a token of probability 0 is never drawn.

    Args:
        logits: of the next token.
        uniforms: one number in [0, 1) per row, float64.
        temperature: the sampling temperature; the log-probs in nats are those at this temperature (K01).
    """
    shifted = logits.float()
    shifted = shifted - shifted.amax(dim=1, keepdim=True)
    if temperature != 1.0:
        shifted = shifted.div_(temperature)
    cumulative = torch.cumsum(shifted.exp(), dim=1, dtype=torch.float64)
    totals = cumulative[:, -1]
    targets = torch.minimum(uniforms * totals, torch.nextafter(totals, torch.zeros_like(totals)))
    tokens = torch.searchsorted(cumulative, targets[:, None], right=True).clamp_(max=logits.shape[1] - 1)
    logprobs = shifted.gather(1, tokens).squeeze(1) - totals.log().float()
    return tokens.squeeze(1), logprobs, totals
