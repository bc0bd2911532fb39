"""Advantages of long responses, a chunk of tokens at a time, equal to those of the whole (A2)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.errors import ConfigError
from rlhf_core.numerics.advantages import temporal_differences


class GaeDecay(NamedTuple):
    """How fast later tokens lose weight."""

    discount: float
    """γ in [0, 1]."""
    gae_lambda: float | Tensor
    """λ in [0, 1], one or `[batch]`."""


def chunked_advantages(
    rewards: Float[Tensor, "batch response"],
    values: Float[Tensor, "batch response"],
    bootstrap_values: Float[Tensor, " batch"],
    response_mask: Bool[Tensor, "batch response"],
    *,
    decay: GaeDecay,
    chunk_tokens: int = 128,
) -> tuple[Float[Tensor, "batch response"], Float[Tensor, "batch response"]]:
    """Return what `generalized_advantages` returns of the same arguments, to rounding, whatever the chunk size.

    From the last chunk to the first: within a chunk `A_t = Σ_{k≥t} (γλ)^{k-t} δ_k` is one matrix product, and what
    follows the chunk comes in as `(γλ)^{end-t} A_end`. Chunks on their own would lose that term.

    Args:
        rewards: reward of each token, after KL shaping.
        values: critic's estimate of the return from that token on.
        bootstrap_values: value after the last token; see `generalized_advantages`.
        response_mask: True at response tokens, a prefix of each row.
        decay: γ and λ.
        chunk_tokens: tokens of one product; its matrix has `chunk_tokens`² elements, for a λ per row as many per row.

    Raises:
        NumericsError: a reward or value at a response token, or what follows a response, is NaN or infinite.
        ConfigError: a chunk has no token.
    """
    if chunk_tokens < 1:
        raise ConfigError(f"chunk_tokens={chunk_tokens} must be at least 1, such as 128.")
    discount, gae_lambda = decay
    td_errors, values = temporal_differences(rewards, values, bootstrap_values, response_mask, discount=discount)
    per_row = gae_lambda.to(td_errors) if isinstance(gae_lambda, Tensor) else td_errors.new_tensor([gae_lambda])
    width = td_errors.shape[1]
    powers = _powers(discount * per_row, min(chunk_tokens, width))
    advantages = torch.empty_like(td_errors)
    following = td_errors.new_zeros(len(td_errors))
    for start in reversed(range(0, width, chunk_tokens)):
        chunk = slice(start, min(start + chunk_tokens, width))
        size = chunk.stop - start
        within = _times(td_errors[:, chunk], powers[:, :size, :size])
        # What follows lies one step beyond the chunk: `size` steps from its first token, 1 from its last.
        advantages[:, chunk] = within + powers[:, :size, 0].flip(1) * (discount * per_row * following)[:, None]
        following = advantages[:, start]
    return advantages, advantages + values


def _powers(decay: Float[Tensor, " rows"], size: int) -> Float[Tensor, "rows size size"]:
    """Return `decay^(k-t)` at `[k, t]` for k ≥ t, and 0 where k < t."""
    steps = torch.arange(size, device=decay.device)
    exponents = steps[:, None] - steps[None, :]
    return (decay[:, None, None] ** exponents.clamp(min=0)).masked_fill(exponents < 0, 0.0)


def _times(td_errors: Float[Tensor, "batch size"], powers: Float[Tensor, "rows size size"]) -> Tensor:
    """Return each row's product with its matrix, or with the one of all rows."""
    if len(powers) == 1:
        return td_errors @ powers[0]
    return torch.bmm(td_errors[:, None, :], powers)[:, 0]
