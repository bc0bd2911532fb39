"""What all controllers of β check: the bounds, the target, what they are shown, and a stored state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rlhf_core.errors import ConfigError, NumericsError


@dataclass(frozen=True)
class CoefBounds:
    """Least and greatest β; ConfigError where they let it become zero or negative (N10)."""

    minimum: float
    maximum: float

    def __post_init__(self) -> None:
        if not 0 < self.minimum <= self.maximum < math.inf:
            raise ConfigError(
                f"kl.minimum={self.minimum} and kl.maximum={self.maximum} do not keep β above 0. "
                "Set 0 < kl.minimum ≤ kl.maximum, such as 0.01 and 0.5."
            )

    def clamped(self, value: float) -> float:
        """Return the value brought into the bounds.

        Raises:
            ConfigError: it is NaN or infinite.
        """
        if not math.isfinite(value):
            raise ConfigError(f"kl_coef={value} must be finite; set kl.start within [{self.minimum}, {self.maximum}].")
        return min(max(value, self.minimum), self.maximum)


def require_target(target_nats: float) -> float:
    """Return the wanted KL per token, or raise ConfigError where it is not a finite number above 0 (N10)."""
    if not 0 < target_nats < math.inf:
        raise ConfigError(f"kl.target_nats={target_nats} must be a finite number above 0, such as 0.02 per token.")
    return target_nats


def require_observed(kl_nats: float, kl_coef: float) -> float:
    """Return the batch's KL, or raise NumericsError where it is NaN or infinite."""
    if not math.isfinite(kl_nats):
        raise NumericsError(f"the batch's KL is {kl_nats}, so kl_coef={kl_coef} cannot be adapted to it.")
    return kl_nats


def stored_value(state: Mapping[str, float | None]) -> float:
    """Return β of a stored state, or raise ConfigError where it holds none."""
    value = state.get("value")
    if value is None:
        raise ConfigError(f"the state {dict(state)} of the KL controller lacks 'value'; take it from state_dict().")
    return value
