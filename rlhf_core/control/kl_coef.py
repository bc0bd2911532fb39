"""The adaptive KL coefficient β, changed once per PPO batch (K1)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlhf_core.errors import ConfigError, NumericsError

_BAND = 1.5
"""KL within [target / 1.5, target × 1.5] leaves β alone."""
_FACTOR = 2.0


class AdaptiveKlCoef:
    """β × 2 where the moving average of KL exceeds 1.5 × target, ÷ 2 where it is below target / 1.5, within bounds.

    `value` is β in use; `average_nats` the moving average of KL per token, None before the first batch.
    """

    def __init__(
        self,
        value: float,
        *,
        target_nats: float,
        smoothing: float = 0.0,
        minimum: float = 0.01,
        maximum: float = 0.5,
        average_nats: float | None = None,
    ) -> None:
        """Start at `value`, or go on from a stored state.

        Args:
            value: β to start with; brought into the bounds.
            target_nats: wanted KL per token, above 0.
            smoothing: weight of the past in the moving average, in [0, 1).
            minimum: least β, above 0.
            maximum: greatest β.
            average_nats: the moving average so far.

        Raises:
            ConfigError: target, bounds or smoothing could make β zero, negative or undefined (N10).
        """
        if not target_nats > 0 or not math.isfinite(target_nats):
            raise ConfigError(f"kl.target_nats={target_nats} must be a finite number above 0, such as 0.02 per token.")
        if not 0 < minimum <= maximum < math.inf:
            raise ConfigError(
                f"kl.minimum={minimum} and kl.maximum={maximum} do not keep β above 0. "
                "Set 0 < kl.minimum ≤ kl.maximum, such as 0.01 and 0.5."
            )
        if not 0 <= smoothing < 1:
            raise ConfigError(f"kl.smoothing={smoothing} must lie in [0, 1); 0 looks at the newest batch alone.")
        self._target_nats, self._smoothing = target_nats, smoothing
        self._minimum, self._maximum = minimum, maximum
        self.average_nats = average_nats
        self.value = self._bounded(value)

    def observe(self, kl_nats: float) -> float:
        """Take the batch's mean KL per token and return β for the next batch.

        Raises:
            NumericsError: the KL is NaN or infinite; β stays as it was.
        """
        if not math.isfinite(kl_nats):
            raise NumericsError(f"the batch's KL is {kl_nats}, so kl_coef={self.value} cannot be adapted to it.")
        past = kl_nats if self.average_nats is None else self.average_nats
        self.average_nats = self._smoothing * past + (1 - self._smoothing) * kl_nats
        if self.average_nats > self._target_nats * _BAND:
            self.value = self._bounded(self.value * _FACTOR)
        elif self.average_nats < self._target_nats / _BAND:
            self.value = self._bounded(self.value / _FACTOR)
        return self.value

    def state_dict(self) -> dict[str, float | None]:
        return {"value": self.value, "average_nats": self.average_nats}

    def load_state_dict(self, state: Mapping[str, float | None]) -> None:
        """Go on from a stored state; β is brought into the bounds of this configuration.

        Raises:
            ConfigError: the state holds no β.
        """
        value = state.get("value")
        if value is None:
            raise ConfigError(f"the state {dict(state)} of the KL controller lacks 'value'; take it from state_dict().")
        self.average_nats = state.get("average_nats")
        self.value = self._bounded(value)

    def _bounded(self, value: float) -> float:
        if not math.isfinite(value):
            raise ConfigError(
                f"kl_coef={value} must be finite; set kl.start within [{self._minimum}, {self._maximum}]."
            )
        return min(max(value, self._minimum), self._maximum)
