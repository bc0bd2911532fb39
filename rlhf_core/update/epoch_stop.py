"""When the passes over one batch end (P7)."""

from __future__ import annotations

import math
from typing import Literal

from rlhf_core.config.ppo import EpochStopConfig
from rlhf_core.errors import NumericsError

StopReason = Literal["kl", "clip_fraction", "small_advantages", "epoch_limit"]


def mini_batch_stop_reason(kl_nats: float, limits: EpochStopConfig) -> StopReason | None:
    """Return `kl` where KL(old‖new) exceeds its limit; asked after each mini-batch.

    Raises:
        NumericsError: the KL is NaN or infinite.
    """
    _require_number("kl_nats", kl_nats)
    return "kl" if kl_nats > limits.max_kl_nats else None


def epoch_stop_reason(
    *,
    kl_nats: float,
    clip_fraction: float,
    mean_abs_advantage: float,
    epochs_done: int,
    max_epochs: int,
    limits: EpochStopConfig,
) -> StopReason | None:
    """Return why no further epoch follows, None where one does; all numbers are those of all ranks (K03).

    Args:
        kl_nats: mean KL(old‖new) per token over the epoch.
        clip_fraction: share of tokens whose gradient the clip removed.
        mean_abs_advantage: mean |A| of the batch before whitening.
        epochs_done: full passes so far.
        max_epochs: passes at most.
        limits: the thresholds.

    Raises:
        NumericsError: a number is NaN or infinite.
    """
    _require_number("clip_fraction", clip_fraction)
    _require_number("mean_abs_advantage", mean_abs_advantage)
    by_kl = mini_batch_stop_reason(kl_nats, limits)
    if by_kl is not None:
        return by_kl
    if clip_fraction > limits.max_clip_fraction:
        return "clip_fraction"
    if mean_abs_advantage < limits.min_mean_abs_advantage:
        return "small_advantages"
    return "epoch_limit" if epochs_done >= max_epochs else None


def _require_number(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise NumericsError(
            f"{name}={value} after a pass over the batch: the update is not to be trusted. "
            "Go back to the last checkpoint; lower the learning rate if it happens again."
        )
