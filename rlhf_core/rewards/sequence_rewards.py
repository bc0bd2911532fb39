"""From raw scores to one reward per response: exclusion, normalisation, clipping, penalties (R1, R2, R5, A5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rlhf_core.config.reward import RewardConfig
from rlhf_core.numerics.group_advantages import group_numbers
from rlhf_core.numerics.running_stats import RunningStats
from rlhf_core.rewards.normalise import (
    Calibration,
    NormalisedScores,
    adaptive_temperature,
    clip_scores,
    normalise_in_groups,
    normalise_scores,
)
from rlhf_core.rewards.penalties import ending_penalties, matches_any

PERCENTILES = (5, 25, 50, 75, 95)


@dataclass(frozen=True)
class SequenceRewards:
    """One entry per response; `rewards` are NaN where `valid` is False; `raw` are as the scorer gave them."""

    raw: list[float]
    rewards: list[float]
    valid: list[bool]
    exclude_reasons: list[str | None]
    metrics: dict[str, float]


@dataclass(frozen=True)
class ResponseTexts:
    """What was answered to what; one entry per response."""

    prompt_ids: Sequence[str]
    """Names of the prompts; responses to the same one are a group."""
    responses: Sequence[str]
    penalised: Sequence[bool]
    """A filter rejected the response, and the policy is to penalise it (G3)."""

    @classmethod
    def unknown(cls, count: int) -> ResponseTexts:
        """Every response in a group of its own, and no text."""
        return cls([str(row) for row in range(count)], [""] * count, [False] * count)


def should_score(ending: str, config: RewardConfig) -> bool:
    """Whether the scorer is asked at all: not for a cut text that it may not judge, nor for an invalid early end."""
    if ending == "truncated":
        return config.scores_truncated
    return not (ending == "early" and config.early_policy == "invalid")


def sequence_rewards(
    scores: Sequence[float],
    endings: Sequence[str],
    config: RewardConfig,
    *,
    texts: ResponseTexts | None = None,
    calibration: Calibration | None = None,
    running: RunningStats | None = None,
) -> SequenceRewards:
    """Turn raw scores into rewards.

    A NaN or infinite score excludes its response alone (N03). A response that was not scored by policy gets the
    mean of the batch's raw scores, and of the normalised ones before they are clipped: 0 with `batch`, and 0 where the
    whole batch is such. With `kl_only` a cut response has reward 0 and no part in statistics, taken after `raw_clip`.

    Args:
        scores: raw scores; what stands where `should_score` says no is not read.
        endings: `natural`, `early` or `truncated`.
        config: policies and limits.
        texts: of prompts and responses; needed for normalisation `group` and for `unsafe_patterns`.
        calibration: for normalisation `calibrated`.
        running: statistics of earlier batches, for normalisation `running`.

    Raises:
        ConfigError: `calibrated` without a usable calibration.
    """
    texts = texts or ResponseTexts.unknown(len(scores))
    raw = torch.tensor([float(score) for score in scores], dtype=torch.float64)
    parts = _parts(raw, endings, config)
    valid, counts = parts.valid, parts.counts
    clipped, raw_clipped_fraction = _raw_clip(raw, counts, config.raw_clip)
    temperature = adaptive_temperature(clipped, counts) if config.adaptive_temperature else 1.0
    normalised = _normalised(clipped / temperature, counts, texts, config.normalisation, calibration, running)
    rewards, clipped_fraction = _clipped(normalised.values, parts, config.clip)
    is_unsafe = matches_any(texts.responses, config.unsafe_patterns) | _flags(texts.penalised)
    rewards += _penalties(endings, config) + is_unsafe * config.penalties.unsafe
    raw = torch.where(parts.is_scored, raw, _mean(clipped[counts]))
    metrics = {
        **_raw_metrics(clipped[counts]),
        **_reward_metrics(rewards[valid]),
        "reward/raw_clipped_fraction": raw_clipped_fraction,
        "reward/clipped_fraction": clipped_fraction,
        "reward/excluded_count": float((~valid).sum()),
        "reward/zero_std_fraction": normalised.zero_std_fraction,
        "reward/unsafe_fraction": _mean(is_unsafe.double()),
        "reward/temperature": temperature,
    }
    rewards = torch.where(valid, rewards, torch.nan)
    return SequenceRewards(raw.tolist(), rewards.tolist(), valid.tolist(), _reasons(raw, parts), metrics)


def _normalised(
    scores: Tensor,
    counts: Tensor,
    texts: ResponseTexts,
    mode: Literal["batch", "running", "calibrated", "group", "none"],
    calibration: Calibration | None,
    running: RunningStats | None,
) -> NormalisedScores:
    if mode == "group":
        return normalise_in_groups(scores, counts, group_numbers(texts.prompt_ids))
    return normalise_scores(scores, counts, mode=mode, calibration=calibration, running=running)


@dataclass(frozen=True)
class _Parts:
    """Which part each response has; all `[batch]`."""

    is_scored: Tensor
    is_invalid: Tensor
    is_lost: Tensor
    """Scored, but the score is no number."""
    counts: Tensor
    """Its score enters the statistics."""
    takes_mean: Tensor

    @property
    def valid(self) -> Tensor:
        return ~self.is_invalid & ~self.is_lost


def _parts(raw: Tensor, endings: Sequence[str], config: RewardConfig) -> _Parts:
    is_scored = _flags(should_score(ending, config) for ending in endings)
    is_invalid = _flags(ending == "early" and config.early_policy == "invalid" for ending in endings)
    has_reward = _flags(ending != "truncated" or config.truncated_policy != "kl_only" for ending in endings)
    is_lost = is_scored & ~torch.isfinite(raw)
    judged = ~is_invalid & ~is_lost & has_reward
    return _Parts(is_scored, is_invalid, is_lost, counts=judged & is_scored, takes_mean=judged & ~is_scored)


def running_stats(metrics: Sequence[dict[str, float]]) -> RunningStats:
    """The statistics of all batches whose stored metrics these are, in order; so a resumed run has the same."""
    stats = RunningStats()
    for batch in metrics:
        count = int(batch.get("reward/raw_count", 0.0))
        if count:
            stats = stats.merged(RunningStats(count, batch["reward/raw_mean"], count * batch["reward/raw_std"] ** 2))
    return stats


def _raw_clip(raw: Tensor, counts: Tensor, limit: float | None) -> tuple[Tensor, float]:
    """The scores within ±limit, and the share that was not, of those that count."""
    if limit is None:
        return raw, 0.0
    return clip_scores(raw, limit)[0], clip_scores(raw[counts], limit)[1]


def _clipped(normalised: Tensor, parts: _Parts, limit: float) -> tuple[Tensor, float]:
    """The normalised scores within ±limit, their mean where it stands for a score, and the share that was clipped."""
    rewards = torch.zeros_like(normalised)
    rewards[parts.counts], fraction = clip_scores(normalised[parts.counts], limit)
    mean = torch.tensor([_mean(normalised[parts.counts])], dtype=torch.float64)
    rewards[parts.takes_mean] = clip_scores(mean, limit)[0]
    return rewards, fraction


def _penalties(endings: Sequence[str], config: RewardConfig) -> Tensor:
    truncation = config.penalties.truncation if config.truncated_policy == "penalty" else 0.0
    return ending_penalties(endings, early_penalty=config.penalties.early_end, truncation_penalty=truncation)


def _flags(values: Iterable[bool]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.bool)


def _mean(values: Tensor) -> float:
    """The mean, 0 of nothing."""
    return float(values.mean()) if len(values) else 0.0


def _raw_metrics(raw: Tensor) -> dict[str, float]:
    """Statistics of the raw scores that count; only their number where there is none."""
    if not len(raw):
        return {"reward/raw_count": 0.0}
    percentiles = np.percentile(raw.numpy(), PERCENTILES)
    return {
        "reward/raw_count": float(len(raw)),
        "reward/raw_mean": float(raw.mean()),
        "reward/raw_std": float(raw.std(correction=0)),
        **{f"reward/raw_p{p:02d}": float(value) for p, value in zip(PERCENTILES, percentiles, strict=True)},
    }


def _reward_metrics(rewards: Tensor) -> dict[str, float]:
    """Mean and spread of the valid rewards; nothing where there is none."""
    if not len(rewards):
        return {}
    return {"reward/mean": float(rewards.mean()), "reward/std": float(rewards.std(correction=0))}


def _reasons(raw: Tensor, parts: _Parts) -> list[str | None]:
    reasons: list[str | None] = []
    for value, invalid, lost in zip(raw.tolist(), parts.is_invalid.tolist(), parts.is_lost.tolist(), strict=True):
        if lost:
            reasons.append("score is NaN" if np.isnan(value) else "score is infinite")
        else:
            reasons.append("ended early" if invalid else None)
    return reasons
