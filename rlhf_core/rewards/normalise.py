"""Normalisation and clipping of the sequence scores (R1, R2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlhf_core.errors import ConfigError
from rlhf_core.numerics.group_advantages import grpo_advantages, zero_std_fraction
from rlhf_core.numerics.reductions import EPSILON, AllReduce, global_moments, identity
from rlhf_core.numerics.running_stats import RunningStats

NormalisationMode = Literal["batch", "running", "calibrated", "none"]
"""Of `normalise_scores`; the mode `group` is `normalise_in_groups`."""

_LEAST_TEMPERATURE, _GREATEST_TEMPERATURE = 0.1, 1.0


@dataclass(frozen=True)
class Calibration:
    """Mean and standard deviation of the baseline's raw scores."""

    mean: float
    std: float


@dataclass(frozen=True)
class NormalisedScores:
    """Normalised scores and what they were normalised with."""

    values: Tensor
    """float64 `[batch]`, in standard deviations (mode `none`: as they came); 0 where `included` is False."""
    included: Tensor
    """bool `[batch]`: valid rows with a finite score; the others are out of statistics and losses."""
    mean: float
    std: float
    """What was subtracted and divided by; by `none` and within groups, the batch's own."""
    excluded_count: int
    """Valid rows, over all ranks, left out for a NaN or infinite score (N03)."""
    zero_std_fraction: float
    """1 where all included scores of this batch are equal, so that they teach nothing (N04); else 0.

    Within groups: the share of groups of which that holds.
    """
    running: RunningStats | None
    """With `running`: the statistics to pass in for the next batch."""


def scores_tensor(scores: Sequence[float | None]) -> Float[Tensor, " batch"]:
    """Return the scores as float64, a missing one as NaN."""
    return torch.tensor([float("nan") if score is None else float(score) for score in scores], dtype=torch.float64)


def normalise_scores(
    scores: Float[Tensor, " batch"],
    valid: Bool[Tensor, " batch"],
    *,
    mode: NormalisationMode,
    calibration: Calibration | None = None,
    running: RunningStats | None = None,
    all_reduce: AllReduce = identity,
) -> NormalisedScores:
    """Return `(score - mean) / (std + 1e-8)` of the valid, finite scores, over all ranks.

    Equal scores and a single one give 0 in modes `batch` and `running` where the stream holds nothing else.

    Args:
        scores: one raw score per response; NaN where the scorer gave none.
        valid: False keeps a row out whatever its score.
        mode: `batch`: this batch's statistics; `running`: those of all batches so far, this one included; `calibrated`:
            the baseline's; `none`: scores stay as they are.
        calibration: for `calibrated`.
        running: for `running`; None starts a new stream.
        all_reduce: sums over ranks.

    Raises:
        ConfigError: `calibrated` without a calibration, or with a spread of 0.
    """
    included = valid & torch.isfinite(scores)
    batch = global_moments(scores, included, all_reduce)
    lost = int(all_reduce((valid & ~included).sum().to(torch.float64).reshape(1)).item())
    mean, std, stream = batch.mean, batch.std, None
    if mode == "running":
        current = RunningStats(batch.count, batch.mean, batch.sum_squared_deviations)
        stream = (running or RunningStats()).merged(current)
        mean, std = stream.mean, stream.std
    elif mode == "calibrated":
        baseline = _require_calibration(calibration)
        mean, std = baseline.mean, baseline.std
    values = scores.to(torch.float64)
    values = values if mode == "none" else (values - mean) / (std + EPSILON)
    return NormalisedScores(
        values=values.masked_fill(~included, 0.0),
        included=included,
        mean=mean,
        std=std,
        excluded_count=lost,
        zero_std_fraction=float(batch.count > 0 and batch.is_constant),
        running=stream,
    )


def normalise_in_groups(
    scores: Float[Tensor, " batch"],
    valid: Bool[Tensor, " batch"],
    group_ids: Int[Tensor, " batch"],
    *,
    all_reduce: AllReduce = identity,
) -> NormalisedScores:
    """Return `(score - mean) / max(std, 1e-4)` within each prompt's valid, finite scores (R1, mode `group`).

    Equal scores and a group of one give exactly 0; for the floor see `GROUP_STD_FLOOR`. The rows of a group are on one
    rank; mean, std and shares that are reported are those of all ranks.

    Args:
        scores: one raw score per response; NaN where the scorer gave none.
        valid: False keeps a row out whatever its score.
        group_ids: the prompt of each row.
        all_reduce: sums over ranks.
    """
    included = valid & torch.isfinite(scores)
    batch = global_moments(scores, included, all_reduce)
    return NormalisedScores(
        values=grpo_advantages(scores, group_ids, included),
        included=included,
        mean=batch.mean,
        std=batch.std,
        excluded_count=int(all_reduce((valid & ~included).sum().to(torch.float64).reshape(1)).item()),
        zero_std_fraction=zero_std_fraction(scores, group_ids, included, all_reduce),
        running=None,
    )


def adaptive_temperature(
    scores: Float[Tensor, " batch"], included: Bool[Tensor, " batch"], all_reduce: AllReduce = identity
) -> float:
    """Return `clamp(std of the batch, 0.1, 1.0)`, by which a reward component may be divided (R4).

    It enlarges the differences of a component whose scores lie close together, by a factor of ten at most, and leaves
    those of a wide one as they are. NaN and infinite scores are left out; without scores it is 0.1.

    Args:
        scores: of one component; units of the component.
        included: rows that count.
        all_reduce: sums over ranks.
    """
    std = global_moments(scores, included & torch.isfinite(scores), all_reduce).std
    return min(max(std, _LEAST_TEMPERATURE), _GREATEST_TEMPERATURE)


def _require_calibration(calibration: Calibration | None) -> Calibration:
    if calibration is None or not calibration.std > EPSILON:
        found = "there is none" if calibration is None else f"its std is {calibration.std}"
        raise ConfigError(
            "reward.normalisation='calibrated' needs the mean and std of the baseline's scores, but "
            f"{found}. Run the baseline evaluation with this reward model, or set reward.normalisation to 'batch'."
        )
    return calibration


def clip_scores(values: Float[Tensor, " batch"], limit: float) -> tuple[Float[Tensor, " batch"], float]:
    """Return the scores clipped to ±limit, and the share of them that the limit changed (R2)."""
    is_clipped = values.abs() > limit
    fraction = is_clipped.to(torch.float64).mean().item() if len(values) else 0.0
    return values.clamp(-limit, limit), fraction
