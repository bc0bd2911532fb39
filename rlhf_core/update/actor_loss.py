"""The actor's loss: clipped objective, entropy bonus, KL to the reference (P1, P2, P4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rlhf_core.config.run import RunConfig
from rlhf_core.control.clip_range import BASE_CLIP_RANGE, adaptive_clip_range
from rlhf_core.control.entropy_coef import entropy_coef_rule
from rlhf_core.data.refs import ControlState
from rlhf_core.numerics.kl_loss import kl_loss, reverse_kl_loss
from rlhf_core.numerics.policy_loss import PolicyClip, ppo_policy_loss


@dataclass(frozen=True)
class ActorBatch:
    """One micro-batch's response tokens; all `[targets]`, nats where they are log-probs."""

    logprobs: Tensor
    """Of the policy that is trained; carries gradients, as `entropy` does."""
    entropy: Tensor
    old_logprobs: Tensor
    ref_logprobs: Tensor
    advantages: Tensor
    importance: Tensor
    """Weight of the objective for the engine's mismatch; 1 where it is not corrected."""
    shares: Tensor
    """What a token's terms count beside the others': 1, or by the length of its response."""


@dataclass(frozen=True)
class ActorLossSettings:
    """Coefficients of one update."""

    clip: PolicyClip
    entropy_coef: float
    kl_coef: float
    """Of the KL in the loss: P4's, and β where it acts here."""
    kl_estimator: Literal["k1", "k2", "k3"]
    reverse_kl_coef: float


def actor_loss_settings(config: RunConfig, control: ControlState, vocab_size: int) -> ActorLossSettings:
    """Return the coefficients that configuration and controllers give."""
    ppo = config.ppo
    clip_range, high = ppo.clip_range, ppo.clip_range_high or ppo.clip_range
    if ppo.clip_range_policy != "fixed" and control.kl_average_nats is not None:
        factor = adaptive_clip_range(control.kl_average_nats, ppo.clip_range_policy) / BASE_CLIP_RANGE
        clip_range, high = factor * clip_range, factor * high
    beta = 0.0 if config.algorithm.kl_in_reward else control.kl_coef
    return ActorLossSettings(
        clip=PolicyClip(clip_range, high, ppo.dual_clip),
        entropy_coef=entropy_coef_rule(vocab_size) if ppo.entropy_coef == "log_vocab" else ppo.entropy_coef,
        kl_coef=beta + config.loss_kl_coef,
        kl_estimator=ppo.loss_kl.estimator,
        reverse_kl_coef=ppo.loss_kl.reverse_coef,
    )


def actor_loss(
    batch: ActorBatch, settings: ActorLossSettings, *, token_count: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return `(loss, metrics)` of a micro-batch, as sums divided by the mini-batch's `token_count`.

    Metrics add up over micro-batches and ranks but `update/ratio_max`, which is a maximum. All are detached float64
    scalars.
    """
    everywhere = torch.ones_like(batch.logprobs, dtype=torch.bool)
    loss, metrics = ppo_policy_loss(
        batch.logprobs,
        batch.old_logprobs,
        batch.importance * batch.shares * batch.advantages,
        everywhere,
        clip_range=settings.clip,
        token_count=token_count,
    )
    entropy = (batch.shares * batch.entropy).sum() / token_count
    metrics["update/entropy_nats"] = batch.entropy.detach().double().sum() / token_count
    if settings.entropy_coef:
        loss = loss - settings.entropy_coef * entropy
    if settings.kl_coef:
        term, kl_metrics = kl_loss(
            batch.logprobs,
            batch.ref_logprobs,
            everywhere,
            estimator=settings.kl_estimator,
            weights=batch.shares,
            token_count=token_count,
        )
        loss, metrics = loss + settings.kl_coef * term, metrics | kl_metrics
    if settings.reverse_kl_coef:
        term, kl_metrics = reverse_kl_loss(
            batch.logprobs, batch.ref_logprobs, everywhere, weights=batch.shares, token_count=token_count
        )
        loss, metrics = loss + settings.reverse_kl_coef * term, metrics | kl_metrics
    return loss, metrics
