"""From scores and the models' opinions to advantages and returns (A1, A3, A5, R6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.config.ppo import PPOConfig
from rlhf_core.config.reward import RewardConfig
from rlhf_core.engines.protocols import RolloutEvaluation
from rlhf_core.experience.kl_shaping import KlTokenLimit, shape_rewards
from rlhf_core.numerics.advantages import generalized_advantages
from rlhf_core.numerics.kl import kl_k1, kl_k2, kl_k3
from rlhf_core.numerics.masking import masked_mean
from rlhf_core.numerics.reductions import AllReduce, global_moments, identity
from rlhf_core.numerics.whitening import scale_to_unit_variance, whiten


@dataclass(frozen=True)
class Judgement:
    """What is known of each response beyond its tokens; both `[batch]`."""

    scores: Tensor
    """Normalised, clipped and penalised reward."""
    is_truncated: Tensor
    """True where the length limit cut the response."""


@dataclass(frozen=True)
class Experience:
    """Per token, `[batch, response]`, 0 at padding."""

    rewards: Tensor
    advantages: Tensor
    """As `ppo.advantage_whitening` has them; whitened by default."""
    returns: Tensor


def judgement(scores: Sequence[float], endings: Sequence[str]) -> Judgement:
    """Return columns of the validated rollouts as tensors."""
    return Judgement(
        scores=torch.tensor(scores, dtype=torch.float32),
        is_truncated=torch.tensor([end == "truncated" for end in endings]),
    )


def build_experience(
    evaluation: RolloutEvaluation,
    judged: Judgement,
    response_mask: Bool[Tensor, "batch response"],
    *,
    kl_coef: float,
    settings: tuple[PPOConfig, RewardConfig],
    all_reduce: AllReduce = identity,
) -> tuple[Experience, dict[str, float]]:
    """Return the experience and metrics named `experience/…`.

    A response that ended has value 0 after its last token. A cut one is worth the critic's value there, unless
    `reward.truncated_policy` is `penalty`: then the cut is an end that the score has punished. With `kl_only` a cut
    response's score is dropped.

    Args:
        evaluation: of the policy that sampled, with reference and critic.
        judged: scores and endings.
        response_mask: True at response tokens.
        kl_coef: β.
        settings: `(ppo, reward)`.
        all_reduce: sums over ranks.

    Raises:
        NumericsError: a KL, value or score is NaN or infinite.
    """
    ppo, reward = settings
    shaping, truncated = ppo.kl_shaping, judged.is_truncated
    penalty_nats = _penalised_kl(evaluation, shaping.estimator)
    limit = None
    if shaping.token_limit_nats is not None:
        limit = KlTokenLimit(evaluation.kl_exact_nats, shaping.token_limit_nats, shaping.token_limit_reward)
    scores = judged.scores.masked_fill(truncated, 0.0) if reward.truncated_policy == "kl_only" else judged.scores
    rewards, metrics = shape_rewards(scores, penalty_nats, response_mask, kl_coef=kl_coef, limit=limit)
    has_future = truncated if reward.truncated_policy != "penalty" else torch.zeros_like(truncated)
    bootstrap_values = evaluation.bootstrap_values.masked_fill(~has_future, 0.0)
    advantages, returns = generalized_advantages(
        rewards,
        evaluation.values,
        bootstrap_values,
        response_mask,
        discount=ppo.discount,
        gae_lambda=ppo.gae_lambda,
    )
    experience = Experience(
        rewards=rewards,
        advantages=_normalised(advantages, response_mask, ppo.advantage_whitening, all_reduce),
        returns=returns,
    )
    return experience, metrics | _metrics(evaluation, advantages, returns, response_mask)


def _normalised(
    advantages: Float[Tensor, "batch response"],
    response_mask: Bool[Tensor, "batch response"],
    mode: Literal["whiten", "scale", "none"],
    all_reduce: AllReduce,
) -> Float[Tensor, "batch response"]:
    if mode == "none":
        return advantages
    return {"whiten": whiten, "scale": scale_to_unit_variance}[mode](advantages, response_mask, all_reduce)


def _penalised_kl(evaluation: RolloutEvaluation, estimator: str) -> Float[Tensor, "batch response"]:
    if estimator == "exact":
        return evaluation.kl_exact_nats
    return {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}[estimator](evaluation.logprobs - evaluation.ref_logprobs)


def _metrics(
    evaluation: RolloutEvaluation, advantages: Tensor, returns: Tensor, response_mask: Tensor
) -> dict[str, float]:
    log_ratio = (evaluation.logprobs - evaluation.ref_logprobs).double()
    per_token = {
        "kl_k1_nats": kl_k1(log_ratio),
        "kl_k3_nats": kl_k3(log_ratio),
        "kl_exact_nats": evaluation.kl_exact_nats,
        "entropy_nats": evaluation.entropy_nats,
        "value_mean": evaluation.values,
        "return_mean": returns,
        "mean_abs_advantage": advantages.abs(),
    }
    metrics = {f"experience/{name}": float(masked_mean(x.double(), response_mask)) for name, x in per_token.items()}
    metrics["experience/explained_variance"] = explained_variance(evaluation.values, returns, response_mask)
    return metrics


def explained_variance(
    values: Float[Tensor, "batch response"],
    returns: Float[Tensor, "batch response"],
    response_mask: Bool[Tensor, "batch response"],
) -> float:
    """Return `1 - Var(returns - values) / Var(returns)`: 1 for a perfect critic, 0 for a constant or equal returns."""
    total = global_moments(returns, response_mask)
    if total.is_constant:
        return 0.0
    return 1.0 - (global_moments(returns - values, response_mask).std / total.std) ** 2
