"""From a score per response to a reward per token (R6)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.numerics.checks import require_finite
from rlhf_core.numerics.masking import last_token_index, masked_mean


@dataclass(frozen=True)
class KlTokenLimit:
    """Hard truncation: a token whose KL exceeds the limit gets a fixed KL reward."""

    kl_t: Tensor
    """`[batch, response]`: the KL that is compared, exact over the vocabulary; nats."""
    limit_nats: float
    reward: float = -10.0
    """Replaces `-kl_coef * kl_t` of such a token."""


def shape_rewards(
    final_scores: Float[Tensor, " batch"],
    kl_t: Float[Tensor, "batch response"],
    response_mask: Bool[Tensor, "batch response"],
    *,
    kl_coef: float,
    limit: KlTokenLimit | None = None,
) -> tuple[Float[Tensor, "batch response"], dict[str, float]]:
    """Return `(rewards, metrics)`: `-kl_coef * kl_t` at each token, plus the score on the last; 0 at padding.

    The last token is the last of the mask: EOS, or the last real token where there is none (E01). A row without tokens
    gets no reward. Metrics are means over the batch's response tokens: the KL that entered the reward (K05) and the
    share of tokens beyond the limit.

    Args:
        final_scores: normalised, clipped and penalised; one per response.
        kl_t: estimate of the KL to the reference that is penalised; nats.
        response_mask: True at response tokens, EOS included.
        kl_coef: β.
        limit: hard truncation; None for none.

    Raises:
        NumericsError: a KL at a response token, or the score of a response, is NaN or infinite.
    """
    has_tokens = response_mask.any(dim=1)
    require_finite("kl_t", kl_t, response_mask)
    require_finite("final_scores", final_scores, has_tokens)
    token_rewards = -kl_coef * kl_t
    is_limited = torch.zeros_like(response_mask)
    if limit is not None:
        require_finite("limit.kl_t", limit.kl_t, response_mask)
        is_limited = limit.kl_t > limit.limit_nats
        token_rewards = token_rewards.masked_fill(is_limited, limit.reward)
    token_rewards = token_rewards.masked_fill(~response_mask, 0.0)
    if response_mask.shape[1]:
        scores = final_scores.masked_fill(~has_tokens, 0.0).to(token_rewards.dtype)
        token_rewards = token_rewards.scatter_add(1, last_token_index(response_mask)[:, None], scores[:, None])
    return token_rewards, {
        "experience/kl_penalty_nats": masked_mean(kl_t.to(torch.float64), response_mask).item(),
        "experience/kl_limited_fraction": masked_mean(is_limited.to(torch.float64), response_mask).item(),
    }
