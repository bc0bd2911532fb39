"""The clipped policy objective of PPO, its two clip ranges and the dual clip (P1, P2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.errors import ConfigError
from rlhf_core.numerics.kl import kl_k3
from rlhf_core.numerics.masking import masked_sum

_LOG_RATIO_LIMIT = 20.0
"""exp(20) is 5e8: far outside any clip range, and far from overflow."""


@dataclass(frozen=True)
class PolicyClip:
    """Where the objective stops to reward a move; ConfigError where a range is impossible."""

    clip_range: float
    """ε below: a ratio gains nothing under 1 - ε. In (0, 1)."""
    clip_range_high: float | None = None
    """ε above (clip-higher, Yu et al. 2025, arXiv:2503.14476, eq. 10); above 0; None: as below."""
    dual_clip: float | None = None
    """c > 1: where A < 0 the objective is at least c·A (Ye et al. 2020, arXiv:1912.09729, eq. 5); None: no bound."""

    def __post_init__(self) -> None:
        if not 0 < self.clip_range < 1:
            raise ConfigError(f"clip_range={self.clip_range} must lie within (0, 1), such as 0.2.")
        if self.clip_range_high is not None and not self.clip_range_high > 0:
            raise ConfigError(f"clip_range_high={self.clip_range_high} must be above 0, such as 0.28, or None.")
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise ConfigError(
                f"dual_clip={self.dual_clip} must be above 1, such as 3; at 1 no bad token is learnt from."
            )

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and greatest ratio that is not clipped."""
        high = self.clip_range if self.clip_range_high is None else self.clip_range_high
        return 1.0 - self.clip_range, 1.0 + high


def ppo_policy_loss(
    logprobs: Float[Tensor, "*shape"],
    old_logprobs: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    response_mask: Bool[Tensor, "*shape"],
    *,
    clip_range: float | PolicyClip,
    token_count: int | float,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """Return `(loss, metrics)`; the loss is a sum over this micro-batch, divided by the mini-batch's `token_count`.

    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 7, with the sign turned. What the mask hides, NaN too, reaches
    neither loss nor metrics nor gradient (N01).

    A token's weight w ≥ 0 (`token_weights`, `truncated_importance_weights`, their product) is multiplied into its
    advantage: all clips commute with it, so the loss is Σ w·loss_t / token_count, while the shares count tokens.

    Metrics are detached float64 scalars. All but `update/ratio_max` are sums divided by `token_count`: add them over
    micro-batches (and ranks) to get the mini-batch's mean. Of `update/ratio_max` take the maximum; it is 0 for an empty
    mask. The KL is k3 of KL(old‖new) in nats, not clamped. `update/dual_clip_fraction` is there with a dual clip.

    Args:
        logprobs: of the sampled tokens under the policy that is trained; nats.
        old_logprobs: the same under the policy that sampled them.
        advantages: whitened or not, weighted or not.
        response_mask: True at response tokens.
        clip_range: ε, or different limits below, above and for the dual clip.
        token_count: response tokens of the whole mini-batch, over all its micro-batches (and ranks).

    Raises:
        ConfigError: ε is not within (0, 1).
    """
    clip = clip_range if isinstance(clip_range, PolicyClip) else PolicyClip(clip_range)
    log_ratio = (logprobs - old_logprobs).masked_fill(~response_mask, 0.0)
    advantages = advantages.detach().masked_fill(~response_mask, 0.0)
    ratio = log_ratio.clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT).exp()
    objective, shares = _objective(ratio, advantages, clip)
    exact_log_ratio = log_ratio.detach().to(torch.float64)
    per_token = shares | {"update/approx_kl_nats": kl_k3(-exact_log_ratio), "update/ratio_mean": ratio.detach()}
    loss = -masked_sum(objective, response_mask) / token_count
    metrics = {name: masked_sum(x.to(torch.float64), response_mask) / token_count for name, x in per_token.items()}
    valid_ratios = ratio.detach().masked_fill(~response_mask, 0.0).to(torch.float64)
    metrics["update/ratio_max"] = valid_ratios.max() if valid_ratios.numel() else valid_ratios.sum()
    metrics["update/policy_loss"] = loss.detach().to(torch.float64)
    return loss, metrics


def _objective(ratio: Tensor, advantages: Tensor, clip: PolicyClip) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the objective of each token, and by metric whether a clip is what counts for it."""
    unclipped, clipped = ratio * advantages, ratio.clamp(*clip.bounds) * advantages
    objective = torch.minimum(unclipped, clipped)
    shares = {"update/clip_fraction": (clipped < unclipped).detach()}
    if clip.dual_clip is None:
        return objective, shares
    # A bound of -inf where A ≥ 0: there the clip itself limits what a token gains.
    floor = torch.where(advantages < 0, clip.dual_clip * advantages, -torch.inf)
    shares["update/dual_clip_fraction"] = (objective < floor).detach()
    return torch.maximum(objective, floor), shares
