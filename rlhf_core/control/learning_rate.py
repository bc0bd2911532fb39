"""Learning-rate schedules as pure functions of the optimizer step (P6)."""

from __future__ import annotations

import math

from rlhf_core.errors import ConfigError

_INVERSE_SQRT_FACTOR = 3e-6


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


def inverse_sqrt_rule(parameter_count: int, d_model: int, *, cap: float) -> float:
    """Return the peak rate `min(3e-6·sqrt(parameter_count) / sqrt(d_model), cap)`.

    The rule grows with the model, 1.5e-3 for 135 million parameters of width 576 and 3.9e-3 for 7 billion of 4096: for
    language models the cap binds.

    Args:
        parameter_count: of the policy.
        d_model: width of its hidden states.
        cap: greatest rate, such as 1e-5.

    Raises:
        ConfigError: a count or the cap is not above 0.
    """
    if min(parameter_count, d_model) < 1 or not 0 < cap < math.inf:
        raise ConfigError(
            f"parameter_count={parameter_count}, d_model={d_model} and cap={cap} must be finite and above 0 for a "
            "learning rate; take the first two from the model, and a cap such as 1e-5."
        )
    return min(_INVERSE_SQRT_FACTOR * math.sqrt(parameter_count) / math.sqrt(d_model), cap)


def late_rise(step: int, *, stalled_since: int | None, late_from: int, rise_steps: int, max_rise: float = 0.2) -> float:
    """Return the factor on the scheduled rate of step `step`: a small linear rise late in the decay.

    1 while the reward does not stall and before `late_from`; from then on it grows by equal parts of `max_rise` and
    rests at `1 + max_rise`. The caller keeps `stalled_since`, clears it when the reward moves again, and stores it, so
    a resumed run has the same rates.

    Args:
        step: optimizer steps already taken.
        stalled_since: step at which the stall was seen; None: there is none.
        late_from: first step at which a rise may begin, such as 70 % of all.
        rise_steps: steps from 1 to the full rise.
        max_rise: greatest rise, in [0, 1], as a share of the scheduled rate.

    Raises:
        ConfigError: the rise takes no step, or could more than double the rate.
    """
    if rise_steps < 1 or not 0 <= max_rise <= 1:
        raise ConfigError(
            f"a late rise of {max_rise} over {rise_steps} steps is none. Set max_rise within [0, 1], such as 0.2, and "
            "rise_steps to 1 or more."
        )
    if stalled_since is None:
        return 1.0
    taken = step - max(stalled_since, late_from)
    return 1.0 + max_rise * min(1.0, max(0, taken) / rise_steps)
