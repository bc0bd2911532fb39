"""Learning-rate schedules as pure functions of the optimizer step (P6)."""

from __future__ import annotations

import math


def warmup_cosine(step: int, *, peak: float, warmup_steps: int, total_steps: int, floor_fraction: float) -> float:
    """Return the learning rate of optimizer step `step`: linear to the peak, then half a cosine to the floor.

    Args:
        step: optimizer steps already taken; 0 for the first.
        peak: reached at step `warmup_steps`, so at the first step where there is no warm-up (N08).
        warmup_steps: steps below the peak; none of them has a rate of 0.
        total_steps: from this step on the rate stays at the floor.
        floor_fraction: the floor as a share of the peak.
    """
    if step < warmup_steps:
        return constant(step, peak=peak, warmup_steps=warmup_steps)
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return peak * (floor_fraction + (1 - floor_fraction) * (1 + math.cos(math.pi * progress)) / 2)


def constant(step: int, *, peak: float, warmup_steps: int = 0) -> float:
    """Return the learning rate of optimizer step `step` (0 for the first): linear to the peak, which then stays."""
    return peak * min(1.0, (step + 1) / (warmup_steps + 1))
