"""KL to the reference as a term of the loss, with gradients (P4, P9)."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.numerics.kl import kl_k1, kl_k2, kl_k3
from rlhf_core.numerics.masking import masked_sum

EXPONENT_LIMIT = 10.0
"""Nats by which the reference may find a token likelier before a loss grows linearly; exp(10) is 22 026."""


def kl_loss(
    logprobs: Float[Tensor, "*shape"],
    ref_logprobs: Float[Tensor, "*shape"],
    response_mask: Bool[Tensor, "*shape"],
    *,
    estimator: Literal["k1", "k2", "k3"],
    token_count: int | float,
    weights: Float[Tensor, "*shape"] | None = None,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """Return `(loss, metrics)`: the estimate of KL(policy‖reference) per token in nats, before its coefficient.

    An estimator that is right in value need not be right in gradient. In expectation over tokens sampled from the
    policy itself, the gradient of the loss is with

    - k2: that of KL(policy‖reference), exactly; take it where that KL is to fall;
    - k3: that of KL(reference‖policy), exactly; the two agree to first order where the policies are close (GRPO's);
    - k1: zero, since the mean of ∇log π is; it only adds noise, and the KL is not held.

    After the first mini-batch tokens come from an older policy and all this holds approximately.

    With k3, beyond `EXPONENT_LIMIT` the loss goes on along its tangent: nothing overflows, and the token is still
    pulled back. What the mask hides reaches neither loss, metrics nor gradient. Metrics are detached float64 sums
    divided by `token_count`, so micro-batches add up; the KL among them is not bent by the limit (N09) nor weighted.

    Args:
        logprobs: of the sampled tokens under the policy that is trained; nats.
        ref_logprobs: under the reference.
        response_mask: True at response tokens.
        estimator: see above.
        token_count: response tokens of the whole mini-batch, over all its micro-batches (and ranks).
        weights: of tokens in the loss, such as those of `token_weights`; None: 1.
    """
    log_ratio = (logprobs - ref_logprobs.detach()).masked_fill(~response_mask, 0.0)
    per_token = {"k1": kl_k1, "k2": kl_k2, "k3": _bounded_k3}[estimator](log_ratio)
    loss = masked_sum(per_token if weights is None else per_token * weights, response_mask) / token_count
    exact = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}[estimator](log_ratio.detach().to(torch.float64))
    return loss, {
        f"update/kl_{estimator}_nats": masked_sum(exact, response_mask) / token_count,
        "update/kl_loss": loss.detach().to(torch.float64),
    }


def reverse_kl_loss(
    logprobs: Float[Tensor, "*shape"],
    ref_logprobs: Float[Tensor, "*shape"],
    response_mask: Bool[Tensor, "*shape"],
    *,
    token_count: int | float,
    weights: Float[Tensor, "*shape"] | None = None,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """Return `(loss, metrics)`: the estimate of KL(reference‖policy) per token in nats, on the policy's own tokens.

    Per token the value is `r·log r - (r - 1)` with `r = reference / policy`: unbiased and never negative. Its own
    derivative `-r·log r·∇log π` is not the gradient of that KL, as it forgets that the tokens' distribution moves too.
    So the gradient is k3's, `(1 - r)·∇log π`, whose mean over the policy's tokens is that of KL(reference‖policy).

    In value and gradient r is bounded by exp(`EXPONENT_LIMIT`). Arguments, masking and metrics are as in `kl_loss`.
    """
    log_ratio = (logprobs - ref_logprobs.detach()).masked_fill(~response_mask, 0.0)
    surrogate = _bounded_k3(log_ratio)
    value = _reverse(log_ratio.detach().clamp(min=-EXPONENT_LIMIT))
    per_token = value + (surrogate - surrogate.detach())
    loss = masked_sum(per_token if weights is None else per_token * weights, response_mask) / token_count
    exact = _reverse(log_ratio.detach().to(torch.float64))
    return loss, {
        "update/reverse_kl_nats": masked_sum(exact, response_mask) / token_count,
        "update/reverse_kl_loss": loss.detach().to(torch.float64),
    }


def _bounded_k3(log_ratio: Tensor) -> Tensor:
    """k3, continued along its tangent where the exponent passes the limit."""
    exponent = (-log_ratio).clamp(max=EXPONENT_LIMIT)
    beyond = -log_ratio - exponent
    return torch.expm1(exponent) + exponent.exp() * beyond + log_ratio


def _reverse(log_ratio: Tensor) -> Tensor:
    """`r·log r - (r - 1)` with `log r = -log_ratio`."""
    return -log_ratio * (-log_ratio).exp() - torch.expm1(-log_ratio)
