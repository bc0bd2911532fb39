"""Truncated importance sampling: what the engine sampled, weighed as if the trainer had (P1)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.errors import ConfigError
from rlhf_core.numerics.checks import require_finite
from rlhf_core.numerics.masking import masked_mean


def truncated_importance_weights(
    old_logprobs: Float[Tensor, "*shape"],
    engine_logprobs: Float[Tensor, "*shape"],
    response_mask: Bool[Tensor, "*shape"],
    *,
    cap: float,
) -> tuple[Float[Tensor, "*shape"], dict[str, float]]:
    """Return `(weights, metrics)`: `min(exp(old_logprobs - engine_logprobs), cap)`, without gradient, 1 at padding.

    Source: Ionides 2008, truncated importance sampling, per token. Engine and trainer compute the same policy with
    other kernels and precisions; the weight undoes in the mean what that changes, and the cap bounds its variance.

    Metrics are means over the response tokens given: `experience/importance_weight_mean`, 1 where engine and trainer
    agree, and `experience/importance_capped_fraction`.

    Args:
        old_logprobs: of the sampled tokens, recomputed by the trainer; nats.
        engine_logprobs: as the engine reported them when it sampled; nats.
        response_mask: True at response tokens.
        cap: greatest weight, at least 1, such as 2.

    Raises:
        ConfigError: the cap is below 1 or not finite.
        NumericsError: a log-prob at a response token is NaN or infinite.
    """
    if not 1 <= cap < math.inf:
        raise ConfigError(f"the cap {cap} of importance weights must be finite and at least 1, such as 2.")
    require_finite("old_logprobs", old_logprobs, response_mask)
    require_finite("engine_logprobs", engine_logprobs, response_mask)
    log_weights = (old_logprobs - engine_logprobs).detach().masked_fill(~response_mask, 0.0)
    limit = math.log(cap)
    weights = log_weights.clamp(max=limit).exp()
    means = {"importance_weight_mean": weights, "importance_capped_fraction": log_weights > limit}
    return weights, {
        f"experience/{name}": float(masked_mean(x.to(torch.float64), response_mask)) for name, x in means.items()
    }
