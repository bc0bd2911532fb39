"""The weight of the pretraining loss, changed once per gate (C1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_core.config.evaluation import DecisionConfig
from rlhf_core.errors import DataError

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
    wanted = ptx_coef * factor
    bounded = min(max(wanted, policy.ptx_minimum), policy.ptx_maximum)
    limit = "" if bounded == wanted else f"; held at the bound {bounded:g}"
    return bounded, f"{why}{limit}"
