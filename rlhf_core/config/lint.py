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
    if config.rollout.rollouts_per_iteration < 16:
        warn(
            "rollout",
            f"{config.rollout.rollouts_per_iteration} rollouts an iteration are few for the noise; 32 are usual.",
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
    return tuple(found)


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
