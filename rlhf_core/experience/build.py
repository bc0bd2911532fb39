"""From scores and the models' opinions to advantages and returns (A1, A3, A5, R6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.config.run import RunConfig
from rlhf_core.control.gae_lambda import gae_lambda_by_length, staged_gae_lambda
from rlhf_core.engines.protocols import RolloutEvaluation
from rlhf_core.experience.estimators import CriticsView, Decay, estimate_advantages
from rlhf_core.experience.kl_shaping import KlTokenLimit, shape_rewards
from rlhf_core.numerics.group_advantages import group_baseline, group_numbers, uniform_groups
from rlhf_core.numerics.kl import kl_k1, kl_k2, kl_k3
from rlhf_core.numerics.masking import masked_mean
from rlhf_core.numerics.reductions import AllReduce, global_moments, identity
from rlhf_core.numerics.whitening import scale_to_unit_variance, whiten


@dataclass(frozen=True)
class Judgement:
    """What is known of each response beyond its tokens; all `[batch]`."""

    scores: Tensor
    """Normalised, clipped and penalised reward."""
    is_truncated: Tensor
    """True where the length limit cut the response."""
    group_ids: Tensor
    """The same number for responses to the same prompt."""


@dataclass(frozen=True)
class Experience:
    """Per token, `[batch, response]`, 0 at padding."""

    rewards: Tensor
    advantages: Tensor
    """As `ppo.advantage_whitening` has them; whitened by default where the algorithm does not compare groups."""
    returns: Tensor


@dataclass(frozen=True)
class Estimation:
    """How rewards become advantages in one iteration."""

    kl_coef: float
    """β."""
    iteration: int
    config: RunConfig


def judgement(scores: Sequence[float], endings: Sequence[str], prompts: Sequence[str]) -> Judgement:
    """Return columns of the validated rollouts as tensors; equal `prompts` are one group."""
    return Judgement(
        scores=torch.tensor(scores, dtype=torch.float32),
        is_truncated=torch.tensor([end == "truncated" for end in endings]),
        group_ids=group_numbers(prompts),
    )


def build_experience(
    evaluation: RolloutEvaluation,
    judged: Judgement,
    response_mask: Bool[Tensor, "batch response"],
    how: Estimation,
    *,
    all_reduce: AllReduce = identity,
) -> tuple[Experience, dict[str, float]]:
    """Return the experience and metrics named `experience/…`.

    A response that ended has value 0 after its last token. A cut one is worth the critic's value there, unless
    `reward.truncated_policy` is `penalty`: then the cut is an end that the score has punished. With `kl_only` the
    score of a cut response comes as its penalties alone.

    Args:
        evaluation: of the policy that sampled, with reference and critic.
        judged: scores, endings and groups.
        response_mask: True at response tokens.
        how: settings, β and the iteration.
        all_reduce: sums over ranks.

    Raises:
        NumericsError: a KL, value or score is NaN or infinite.
    """
    ppo, algorithm = how.config.ppo, how.config.algorithm
    rewards, metrics = _token_rewards(evaluation, judged, response_mask, how)
    critic = CriticsView(evaluation.values, _bootstrap_values(evaluation, judged, how.config))
    advantages, returns = estimate_advantages(
        rewards,
        critic,
        response_mask,
        judged.group_ids,
        algorithm,
        Decay(ppo.discount, _gae_lambda(how, response_mask), ppo.gae_chunk_tokens),
    )
    whitening = ppo.advantage_whitening or ("none" if algorithm.kind in ("grpo", "rloo") else "whiten")
    experience = Experience(
        rewards=rewards,
        advantages=_normalised(advantages, response_mask, whitening, all_reduce),
        returns=returns,
    )
    if algorithm.is_by_group:
        uniform = uniform_groups(judged.scores.double(), judged.group_ids, response_mask.any(dim=1))
        metrics["experience/uniform_group_fraction"] = float(uniform.double().mean())
    metrics |= _metrics(evaluation, advantages, returns, response_mask)
    if algorithm.has_critic:
        metrics["experience/value_mean"] = float(masked_mean(evaluation.values.double(), response_mask))
        metrics["experience/explained_variance"] = explained_variance(evaluation.values, returns, response_mask)
    return experience, metrics


def _token_rewards(
    evaluation: RolloutEvaluation, judged: Judgement, response_mask: Tensor, how: Estimation
) -> tuple[Float[Tensor, "batch response"], dict[str, float]]:
    algorithm, shaping = how.config.algorithm, how.config.ppo.kl_shaping
    scores = judged.scores
    if algorithm.kind == "reinforce_plus_plus" and algorithm.subtract_group_mean:
        scores = group_baseline(scores.double(), judged.group_ids, response_mask.any(dim=1)).to(scores.dtype)
    limit = None
    if shaping.token_limit_nats is not None and algorithm.kl_in_reward:
        limit = KlTokenLimit(evaluation.kl_exact_nats, shaping.token_limit_nats, shaping.token_limit_reward)
    return shape_rewards(
        scores,
        _penalised_kl(evaluation, shaping.estimator),
        response_mask,
        kl_coef=how.kl_coef if algorithm.kl_in_reward else 0.0,
        limit=limit,
    )


def _bootstrap_values(evaluation: RolloutEvaluation, judged: Judgement, config: RunConfig) -> Float[Tensor, " batch"]:
    has_future = judged.is_truncated & (config.reward.truncated_policy != "penalty")
    return evaluation.bootstrap_values.masked_fill(~has_future, 0.0)


def _gae_lambda(how: Estimation, response_mask: Tensor) -> float | Float[Tensor, " batch"]:
    """λ as `ppo.gae_lambda_policy` has it (A4)."""
    policy = how.config.ppo.gae_lambda_policy
    if policy == "by_length":
        return gae_lambda_by_length(response_mask.sum(dim=1))
    if policy == "staged":
        first, second = (how.config.iterations * third // 3 + 1 for third in (1, 2))
        return staged_gae_lambda(how.iteration, borders=[first, max(second, first + 1)])
    return how.config.ppo.gae_lambda


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
        "fluency_nats": evaluation.ref_logprobs,
        "return_mean": returns,
        "mean_abs_advantage": advantages.abs(),
    }
    return {f"experience/{name}": float(masked_mean(x.double(), response_mask)) for name, x in per_token.items()}


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
