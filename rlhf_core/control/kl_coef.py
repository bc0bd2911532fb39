"""Controllers of the KL coefficient β, which change it once per PPO batch (K1).

All have `value`, `observe(kl_nats)`, `state_dict()` and `load_state_dict(state)`; β stays within bounds above 0 (N10).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlhf_core.control.coef_bounds import CoefBounds, require_observed, require_target, stored_value
from rlhf_core.control.pid import PidErrors, PidGains, pid_increment
from rlhf_core.errors import ConfigError

_BAND = 1.5
"""KL within [target / 1.5, target × 1.5] leaves β alone."""
_FACTOR = 2.0
_PROPORTIONAL_LIMIT = 0.2
"""Greatest relative error that the proportional controller answers."""


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
        if not 0 <= smoothing < 1:
            raise ConfigError(f"kl.smoothing={smoothing} must lie in [0, 1); 0 looks at the newest batch alone.")
        self._target_nats, self._smoothing = require_target(target_nats), smoothing
        self._bounds = CoefBounds(minimum, maximum)
        self.average_nats = average_nats
        self.value = self._bounds.clamped(value)

    def observe(self, kl_nats: float) -> float:
        """Take the batch's mean KL per token and return β for the next batch.

        Raises:
            NumericsError: the KL is NaN or infinite; β stays as it was.
        """
        require_observed(kl_nats, self.value)
        past = kl_nats if self.average_nats is None else self.average_nats
        self.average_nats = self._smoothing * past + (1 - self._smoothing) * kl_nats
        if self.average_nats > self._target_nats * _BAND:
            self.value = self._bounds.clamped(self.value * _FACTOR)
        elif self.average_nats < self._target_nats / _BAND:
            self.value = self._bounds.clamped(self.value / _FACTOR)
        return self.value

    def state_dict(self) -> dict[str, float | None]:
        return {"value": self.value, "average_nats": self.average_nats}

    def load_state_dict(self, state: Mapping[str, float | None]) -> None:
        """Go on from a stored state; β is brought into the bounds of this configuration.

        Raises:
            ConfigError: the state holds no β.
        """
        self.value = self._bounds.clamped(stored_value(state))
        self.average_nats = state.get("average_nats")


class ProportionalKlCoef:
    """`β ← β·(1 + clip(kl/target - 1, ±0.2)·batch_size/horizon)`, within bounds; `value` is β in use.

    Source: Ziegler et al. 2019, arXiv:1909.08593, section 2.2. After `horizon` rollouts far from the target β has
    changed by about 20 %.
    """

    def __init__(
        self,
        value: float,
        *,
        target_nats: float,
        horizon_rollouts: int,
        batch_rollouts: int,
        minimum: float = 0.01,
        maximum: float = 0.5,
    ) -> None:
        """Start at `value`, brought into the bounds.

        Args:
            value: β to start with, or to go on from.
            target_nats: wanted KL per token, above 0.
            horizon_rollouts: rollouts over which β may change by about 20 %, above 0.
            batch_rollouts: rollouts of one batch, from 1 to less than 5 × the horizon.
            minimum: least β, above 0.
            maximum: greatest β.

        Raises:
            ConfigError: target, bounds, horizon or batch could make β zero, negative or undefined (N10).
        """
        if not horizon_rollouts > 0:
            raise ConfigError(f"kl.horizon_rollouts={horizon_rollouts} must be above 0, such as 10000.")
        if not 0 < batch_rollouts < horizon_rollouts / _PROPORTIONAL_LIMIT:
            raise ConfigError(
                f"with kl.horizon_rollouts={horizon_rollouts} a batch of {batch_rollouts} rollouts at low KL would "
                f"make β zero or negative. Set the horizon above {_PROPORTIONAL_LIMIT * batch_rollouts:g}, and at "
                "least one rollout per batch."
            )
        self._target_nats = require_target(target_nats)
        self._gain = batch_rollouts / horizon_rollouts
        self._bounds = CoefBounds(minimum, maximum)
        self.value = self._bounds.clamped(value)

    def observe(self, kl_nats: float) -> float:
        """Take the batch's mean KL per token and return β for the next batch.

        Raises:
            NumericsError: the KL is NaN or infinite; β stays as it was.
        """
        ratio = require_observed(kl_nats, self.value) / self._target_nats
        error = min(max(ratio - 1, -_PROPORTIONAL_LIMIT), _PROPORTIONAL_LIMIT)
        self.value = self._bounds.clamped(self.value * (1 + error * self._gain))
        return self.value

    def state_dict(self) -> dict[str, float | None]:
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, float | None]) -> None:
        """Go on from a stored state; β is brought into the bounds of this configuration.

        Raises:
            ConfigError: the state holds no β.
        """
        self.value = self._bounds.clamped(stored_value(state))


class PidKlCoef:
    """A PID on log β with the error `clip(kl/target - 1, ±1)`; `value` is β in use, `errors` the two newest ones.

    On log β every change is a factor, so β stays above 0 and moves alike at 0.01 and at 0.5: with an integral gain of
    0.1, a KL of twice the target or more raises it by 10 % a batch. At a bound nothing winds up (see `pid_increment`).
    """

    def __init__(
        self,
        value: float,
        *,
        target_nats: float,
        gains: PidGains | None = None,
        minimum: float = 0.01,
        maximum: float = 0.5,
        errors: PidErrors | None = None,
    ) -> None:
        """Start at `value`, or go on from a stored state.

        Args:
            value: β to start with; brought into the bounds.
            target_nats: wanted KL per token, above 0.
            gains: None for the defaults.
            minimum: least β, above 0.
            maximum: greatest β.
            errors: those of the batches before.

        Raises:
            ConfigError: target or bounds could make β zero, negative or undefined (N10).
        """
        self._target_nats = require_target(target_nats)
        self._gains = PidGains() if gains is None else gains
        self._bounds = CoefBounds(minimum, maximum)
        self.errors = PidErrors() if errors is None else errors
        self.value = self._bounds.clamped(value)

    def observe(self, kl_nats: float) -> float:
        """Take the batch's mean KL per token and return β for the next batch.

        Raises:
            NumericsError: the KL is NaN or infinite; β stays as it was.
        """
        error = min(max(require_observed(kl_nats, self.value) / self._target_nats - 1, -1.0), 1.0)
        increment, self.errors = pid_increment(error, self.errors, self._gains)
        # exp(±50) leaves every bound behind and does not overflow.
        self.value = self._bounds.clamped(self.value * math.exp(min(max(increment, -50.0), 50.0)))
        return self.value

    def state_dict(self) -> dict[str, float | None]:
        return {"value": self.value, "error": self.errors.last, "previous_error": self.errors.before_last}

    def load_state_dict(self, state: Mapping[str, float | None]) -> None:
        """Go on from a stored state; β is brought into the bounds of this configuration.

        Raises:
            ConfigError: the state holds no β.
        """
        self.value = self._bounds.clamped(stored_value(state))
        self.errors = PidErrors(last=state.get("error"), before_last=state.get("previous_error"))
