"""A PID controller in its incremental form, of the coefficient that it steers (K1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlhf_core.errors import ConfigError


@dataclass(frozen=True)
class PidGains:
    """Gains on an error without unit; ConfigError where they cannot steer."""

    proportional: float = 0.2
    integral: float = 0.1
    """Above 0: without it an error that stays is never worked off."""
    derivative: float = 0.0

    def __post_init__(self) -> None:
        gains = {"proportional": self.proportional, "integral": self.integral, "derivative": self.derivative}
        bad = {name: gain for name, gain in gains.items() if not 0 <= gain < math.inf}
        if bad or self.integral == 0:
            raise ConfigError(
                f"PID gains {bad or {'integral': 0.0}} cannot hold a target. Set all gains finite and not negative, "
                "and the integral gain above 0, such as proportional=0.2, integral=0.1, derivative=0."
            )


@dataclass(frozen=True)
class PidErrors:
    """The two newest errors; None where there is none yet."""

    last: float | None = None
    before_last: float | None = None


def pid_increment(error: float, past: PidErrors, gains: PidGains) -> tuple[float, PidErrors]:
    """Return by how much the steered quantity moves, and the errors to pass in next time.

    `Δu = Kp·(e₀ - e₁) + Ki·e₀ + Kd·(e₀ - 2e₁ + e₂)`: the difference of the textbook's `Kp·e + Ki·Σe + Kd·Δe`. Source:
    Åström and Hägglund 1995, PID Controllers, chapter 3 (incremental form). A missing past error counts as the
    oldest known one, so a controller starts without a kick.

    The sum of errors lives in the steered quantity itself. Where that is held at a bound nothing winds up behind it:
    the first error of the other sign moves it away. And a quantity that somebody else changed, as a rollback does, is
    simply gone on from.
    """
    last = error if past.last is None else past.last
    before_last = last if past.before_last is None else past.before_last
    increment = (
        gains.proportional * (error - last)
        + gains.integral * error
        + gains.derivative * (error - 2 * last + before_last)
    )
    return increment, PidErrors(last=error, before_last=past.last)
