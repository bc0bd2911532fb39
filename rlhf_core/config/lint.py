"""Warnings about settings that are legal but known to hurt (L*)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist

from rlhf_core.config.base import StrictConfig
from rlhf_core.config.run import RunConfig


class LintWarning(StrictConfig):
    """One warning: the field, what it does, and what to do."""

    field: str
    message: str


def lint(config: RunConfig, available_items: Mapping[str, int] | None = None) -> tuple[LintWarning, ...]:
    """All warnings of a configuration, in the order of its sections.

    Args:
        config: the whole of it.
        available_items: items in a benchmark's files, by its name, where they have been counted.
    """
    found: list[LintWarning] = []

    def warn(field: str, message: str) -> None:
        found.append(LintWarning(field=field, message=message))

    ppo = config.ppo
    if ppo.critic_optimizer.learning_rate < ppo.actor.learning_rate:
        warn(
            "ppo.critic.learning_rate", "below the actor's; the critic then lags behind. Usual: 2 to 10 × the actor's."
        )
    if not 0.1 <= ppo.clip_range <= 0.3:
        warn("ppo.clip_range", f"{ppo.clip_range} is far from 0.2, where PPO is known to be stable.")
    if config.reward.normalisation == "none":
        warn("reward.normalisation", "rewards are not normalised; their scale then sets the step size (S5, S14).")
    if config.rollout.rollouts_in(1) < 16:
        warn(
            "rollout",
            f"{config.rollout.rollouts_in(1)} rollouts an iteration are few for the noise; 32 are usual.",
        )
    noise_nats = (config.rollout.exploration.noise_std_at(1) / config.rollout.temperature) ** 2 / 2
    if noise_nats > ppo.epoch_stop.max_kl_nats:
        warn(
            "rollout.exploration.noise_std",
            f"the noise alone is a KL of up to about {noise_nats:.2g} nats per token, above "
            f"ppo.epoch_stop.max_kl_nats={ppo.epoch_stop.max_kl_nats:g}; updates may end after their first mini-batch.",
        )
    if not ppo.ptx.enabled and config.data.general_fraction == 0:
        warn(
            "ppo.ptx.enabled", "no general data are mixed in (ptx off, general_fraction 0); abilities may be forgotten."
        )
    if not config.evaluation.benchmarks:
        warn(
            "evaluation.benchmarks",
            "none given: the gate cannot see forgotten abilities and never rolls back for them.",
        )
    found += _too_few_items(config, available_items or {})
    if config.reward.scorer == "callable":
        warn("reward.scorer", "a callable is not validated like a reward model; check by hand that it cannot be gamed.")
    for field, message in _algorithm_warnings(config).items():
        warn(field, message)
    for field, message in _precision_warnings(config).items():
        warn(field, message)
    return (*found, *_rejection_warnings(config))


def _algorithm_warnings(config: RunConfig) -> dict[str, str]:
    """What is known to hurt one algorithm or one kind of start."""
    found: dict[str, str] = {}
    coef, in_loss = config.ppo.loss_kl.coef, not config.algorithm.kl_in_reward
    if config.model.start == "base" and (coef or in_loss):
        found["ppo.loss_kl"] = (
            "KL in the loss with a base model's start holds back what it has yet to learn. Set ppo.loss_kl.coef=0 and "
            "algorithm.kl_placement=reward, or a small kl.start."
        )
    if config.model.start == "sft" and coef == 0 and not in_loss:
        found["ppo.loss_kl.coef"] = "0 with an SFT start: nothing in the loss holds the policy near it; usual: 0.001."
    if config.algorithm.kind == "grpo" and config.rollout.temperature < 0.9:
        found["rollout.temperature"] = (
            f"{config.rollout.temperature:g} makes the responses of a group alike, so that it teaches little; "
            "GRPO samples at 0.95 to 1."
        )
    return found


def _precision_warnings(config: RunConfig) -> dict[str, str]:
    """What this machine makes of bfloat16; only then torch is imported, which takes seconds."""
    if "bfloat16" not in (config.model.autocast, config.model.reference_dtype):
        return {}
    from rlhf_core.models.precision import precision_warnings

    return precision_warnings(config.model, config.compute)


def _too_few_items(config: RunConfig, available_items: Mapping[str, int]) -> list[LintWarning]:
    """A warning for each benchmark whose items, as many as will be used, cannot show the drop that rolls back."""
    drop, confidence = config.decisions.rollback_drop, config.decisions.confidence
    needed = items_to_detect(drop, confidence)
    warnings: list[LintWarning] = []
    for benchmark in config.evaluation.benchmarks:
        counts = [count for count in (benchmark.items, available_items.get(benchmark.name)) if count is not None]
        if counts and min(counts) < needed:
            source = "in its files" if counts[-1] < (benchmark.items or math.inf) else "asked for"
            warnings.append(
                LintWarning(
                    field=f"evaluation.benchmarks.{benchmark.name}",
                    message=f"{min(counts)} items ({source}) cannot show a drop of {drop:.1%} "
                    f"at {confidence:.0%}; about {needed} are needed. Smaller true drops pass unseen.",
                )
            )
    return warnings


def items_to_detect(drop: float, confidence: float, *, discordant_share: float = 0.1) -> int:
    """Items of a paired comparison that show `drop` (in accuracy) half of the time.

    McNemar's normal approximation: the paired difference of `n` items has the variance `discordant_share / n`,
    where `discordant_share` is the share of items on which the two models differ.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    return math.ceil(z * z * discordant_share / (drop * drop))


def _rejection_warnings(config: RunConfig) -> tuple[LintWarning, ...]:
    rejection = config.rollout.rejection
    if not rejection.may_replace or (config.ppo.ptx.enabled and rejection.replacement.replay_share):
        return ()
    message = "rejected responses are replaced, but without ppo.ptx and a replay_share above 0 no reply is learnt from."
    return (LintWarning(field="rollout.rejection", message=message),)
