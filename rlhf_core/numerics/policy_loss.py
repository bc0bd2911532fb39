"""The clipped policy objective of PPO (P1)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.numerics.kl import kl_k3
from rlhf_core.numerics.masking import masked_sum

_LOG_RATIO_LIMIT = 20.0
"""exp(20) is 5e8: far outside any clip range, and far from overflow."""


def ppo_policy_loss(
    logprobs: Float[Tensor, "*shape"],
    old_logprobs: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    response_mask: Bool[Tensor, "*shape"],
    *,
    clip_range: float,
    token_count: int | float,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """Return `(loss, metrics)`; the loss is a sum over this micro-batch, divided by the mini-batch's `token_count`.

    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 7, with the sign turned. What the mask hides, NaN too, reaches
    neither loss nor metrics nor gradient (N01).

    Metrics are detached float64 scalars. All but `update/ratio_max` are sums divided by `token_count`: add them over
    micro-batches (and ranks) to get the mini-batch's mean. Of `update/ratio_max` take the maximum; it is 0 for an empty
    mask. The KL is k3 of KL(old‖new) in nats, not clamped.

    Args:
        logprobs: of the sampled tokens under the policy that is trained; nats.
        old_logprobs: the same under the policy that sampled them.
        advantages: whitened or not.
        response_mask: True at response tokens.
        clip_range: ε; the ratio is clipped to [1 - ε, 1 + ε].
        token_count: response tokens of the whole mini-batch, over all its micro-batches (and ranks).
    """
    log_ratio = (logprobs - old_logprobs).masked_fill(~response_mask, 0.0)
    advantages = advantages.detach().masked_fill(~response_mask, 0.0)
    ratio = log_ratio.clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT).exp()
    unclipped = ratio * advantages
    clipped = ratio.clamp(1.0 - clip_range, 1.0 + clip_range) * advantages
    loss = -masked_sum(torch.minimum(unclipped, clipped), response_mask) / token_count

    exact_log_ratio = log_ratio.detach().to(torch.float64)
    per_token = {
        "update/clip_fraction": (clipped < unclipped).detach(),
        "update/approx_kl_nats": kl_k3(-exact_log_ratio),
        "update/ratio_mean": ratio.detach(),
    }
    metrics = {name: masked_sum(x.to(torch.float64), response_mask) / token_count for name, x in per_token.items()}
    valid_ratios = ratio.detach().masked_fill(~response_mask, 0.0).to(torch.float64)
    metrics["update/ratio_max"] = valid_ratios.max() if valid_ratios.numel() else valid_ratios.sum()
    metrics["update/policy_loss"] = loss.detach().to(torch.float64)
    return loss, metrics
