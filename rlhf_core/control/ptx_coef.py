"""The weight of the pretraining loss, changed once per gate (C1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_core.config.evaluation import DecisionConfig
from rlhf_core.control.pid import PidErrors, PidGains, pid_increment
from rlhf_core.errors import ConfigError, DataError

_FACTOR = 2.0


@dataclass(frozen=True)
class PtxSignals:
    """What one gate saw."""

    ability_drop: float
    """Baseline's mean benchmark score minus the moving average of the policy's; positive is a loss."""
    reward_gain: float
    """Rise of the held-out reward since the last gate, in standard deviations of the baseline."""
    kl_nats: float
    """Mean KL to the reference per token."""


def moving_average(scores: Sequence[float], smoothing: float) -> float:
    """Return the exponential moving average of the scores, oldest first, started at the first.

    Raises:
        DataError: there is no score.
    """
    if not scores:
        raise DataError("a moving average needs at least one benchmark score; run the gate before asking for it.")
    average = scores[0]
    for score in scores[1:]:
        average = smoothing * average + (1 - smoothing) * score
    return average


def adjusted_ptx_coef(ptx_coef: float, signals: PtxSignals, policy: DecisionConfig) -> tuple[float, str]:
    """Return the next `ptx_coef` within its bounds, and the reason in words.

    Ability below the tolerated floor doubles it. Where ability is steady, a reward that is flat with KL near zero
    halves it (ptx holds the policy in place), and so does a reward that rises slowly.
    """
    drop, gain, kl = signals.ability_drop, signals.reward_gain, signals.kl_nats
    if drop > policy.tolerated_drop:
        factor, why = _FACTOR, f"ability fell by {drop:.2%}, more than the tolerated {policy.tolerated_drop:.2%}"
    elif gain < policy.slow_reward_gain and kl < policy.flat_kl_nats:
        factor = 1 / _FACTOR
        why = f"reward is flat ({gain:+.3f} std) with KL near zero ({kl:.4f} nats): ptx holds the policy in place"
    elif gain < policy.slow_reward_gain:
        factor, why = 1 / _FACTOR, f"reward rises slowly ({gain:+.3f} std) while ability is steady ({-drop:+.2%})"
    else:
        return ptx_coef, f"ability is steady ({-drop:+.2%}) and reward rises ({gain:+.3f} std)"
    bounded, limit = _bounded(ptx_coef * factor, policy)
    return bounded, f"{why}{limit}"


def pid_ptx_coef(
    ptx_coef: float, ability_drop: float, errors: PidErrors, policy: DecisionConfig, gains: PidGains | None = None
) -> tuple[float, str, PidErrors]:
    """Return the next `ptx_coef` within its bounds, the reason in words, and the errors to pass in at the next gate.

    A PID on log ptx_coef with the error `clip(ability_drop / tolerated_drop, ±1)`: it raises the coefficient before
    the tolerance is used up, and lowers it while ability is above the baseline.

    Raises:
        ConfigError: no drop is tolerated, so that there is no scale for the error.
        DataError: the drop is NaN or infinite.
    """
    if not policy.tolerated_drop > 0:
        raise ConfigError(
            f"decisions.tolerated_drop={policy.tolerated_drop} leaves the PID of ptx_coef without a scale. "
            "Set it above 0, such as 0.01, or use the doubling rule."
        )
    if not math.isfinite(ability_drop):
        raise DataError(f"the drop of ability is {ability_drop}. Run the gate's benchmarks again; ptx_coef stays.")
    error = min(max(ability_drop / policy.tolerated_drop, -1.0), 1.0)
    increment, errors = pid_increment(error, errors, PidGains() if gains is None else gains)
    factor = math.exp(min(max(increment, -50.0), 50.0))
    bounded, limit = _bounded(ptx_coef * factor, policy)
    why = f"ability changed by {-ability_drop:+.2%} (tolerated: -{policy.tolerated_drop:.2%}); PID factor {factor:.3f}"
    return bounded, f"{why}{limit}", errors


def _bounded(wanted: float, policy: DecisionConfig) -> tuple[float, str]:
    bounded = min(max(wanted, policy.ptx_minimum), policy.ptx_maximum)
    return bounded, "" if bounded == wanted else f"; held at the bound {bounded:g}"
