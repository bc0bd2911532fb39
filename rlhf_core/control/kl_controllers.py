"""The controller of β that the configuration asks for (K1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rlhf_core.config.ppo import KlControllerConfig
from rlhf_core.control.kl_coef import AdaptiveKlCoef, PidKlCoef, ProportionalKlCoef
from rlhf_core.control.pid import PidGains
from rlhf_core.errors import ConfigError


class KlController(Protocol):
    """`value` is β in use."""

    value: float

    def observe(self, kl_nats: float) -> float:
        """Take the batch's mean KL per token and return β for the next batch."""
        ...

    def state_dict(self) -> dict[str, float | None]: ...

    def load_state_dict(self, state: Mapping[str, float | None]) -> None: ...


def kl_controller(config: KlControllerConfig, kl_coef: float, *, batch_rollouts: int) -> KlController:
    """Return a controller that starts at `kl_coef`.

    Args:
        config: which one, and its limits.
        kl_coef: β in use.
        batch_rollouts: responses in the batch that it is about to see.

    Raises:
        ConfigError: the kind is `fixed`, or the settings could make β zero or negative (N10).
    """
    target, least, most = config.target_nats, config.minimum, config.maximum
    if config.kind == "adaptive":
        return AdaptiveKlCoef(kl_coef, target_nats=target, smoothing=config.smoothing, minimum=least, maximum=most)
    if config.kind == "proportional":
        return ProportionalKlCoef(
            kl_coef,
            target_nats=target,
            horizon_rollouts=config.horizon_rollouts,
            batch_rollouts=batch_rollouts,
            minimum=least,
            maximum=most,
        )
    if config.kind == "pid":
        gains = PidGains(config.proportional_gain, config.integral_gain, config.derivative_gain)
        return PidKlCoef(kl_coef, target_nats=target, gains=gains, minimum=least, maximum=most)
    raise ConfigError("kl.kind='fixed' has no controller: β stays at kl.start.")
