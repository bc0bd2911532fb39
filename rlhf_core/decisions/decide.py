"""The gate's decision: a pure function over the records of all gates so far (C1, C2, C4, C5, K4)."""

from __future__ import annotations

from rlhf_core.config.evaluation import DecisionConfig
from rlhf_core.control.ptx_coef import PtxSignals, adjusted_ptx_coef, moving_average
from rlhf_core.data.refs import BenchmarkScore, ControlState
from rlhf_core.decisions.records import Decision, GateRecord
from rlhf_core.errors import DataError


def decide(history: tuple[GateRecord, ...], policy: DecisionConfig, *, kl_coef_maximum: float) -> Decision:
    """Return what follows from the last gate of `history`.

    In order: measurements that are not finite, KL over its limit or a real benchmark drop over `rollback_drop` roll
    back, at most `max_rollbacks` times, then the run stops. A real drop over `tolerated_drop` is not promoted, and
    ptx_coef answers it. A policy whose reward is certainly below the baseline's is not promoted. All else passes.

    Args:
        history: gates of the run, oldest first; all but the last are decided.
        policy: limits and factors.
        kl_coef_maximum: upper bound of β (`kl.maximum`).

    Raises:
        DataError: the history is empty.
    """
    if not history:
        raise DataError("there is no gate to decide on. Evaluate a checkpoint first.")
    gate = history[-1]
    faults = _faults(gate, policy)
    if faults:
        return _rolled_back(history, faults, policy, kl_coef_maximum)
    drops = _real_drops(gate, policy, above=policy.tolerated_drop)
    is_worse = gate.reward_gain_high < 0
    ptx_coef, why_ptx = _next_ptx_coef(history, drops, policy)
    reasons = [f"{_in_words(score)}, over the tolerated {policy.tolerated_drop:.2%}: not promoted" for score in drops]
    if is_worse:
        reasons.append(
            f"held-out reward is below the baseline's ({gate.reward_gain:+.3f} std, its interval ends at "
            f"{gate.reward_gain_high:+.3f}): not promoted"
        )
    if not reasons:
        reasons.append(_passed(gate, policy))
    reasons.append(why_ptx)
    return Decision(
        kind="continue" if ptx_coef == gate.control.ptx_coef else "adjust_ptx",
        reasons=tuple(reasons),
        promote=not drops and not is_worse,
        control=gate.control.model_copy(
            update={"ptx_coef": ptx_coef, "is_reward_stalled": _gain_since_last_gate(history) < policy.slow_reward_gain}
        ),
    )


def is_real_drop(score: BenchmarkScore, policy: DecisionConfig) -> bool:
    """Whether the loss on a benchmark is more than noise: its paired interval excludes 0, and McNemar's test agrees.

    The bootstrap alone would believe four lost items of hundreds (p = 0.125).
    """
    return score.drop_low > 0 and score.p_value < 1.0 - policy.confidence


def _real_drops(gate: GateRecord, policy: DecisionConfig, *, above: float) -> list[BenchmarkScore]:
    return [score for score in gate.benchmarks if score.drop > above and is_real_drop(score, policy)]


def _faults(gate: GateRecord, policy: DecisionConfig) -> list[str]:
    """Reasons for a rollback."""
    faults = [f"{name} is not finite" for name in gate.non_finite]
    if gate.kl_nats > policy.kl_limit_nats:
        faults.append(f"KL of {gate.kl_nats:.4f} nats per token is over the limit of {policy.kl_limit_nats:g}")
    for score in _real_drops(gate, policy, above=policy.rollback_drop):
        faults.append(f"{_in_words(score)}, over the rollback limit of {policy.rollback_drop:.2%}")
    return faults


def _rolled_back(
    history: tuple[GateRecord, ...], faults: list[str], policy: DecisionConfig, kl_coef_maximum: float
) -> Decision:
    """Roll back with a smaller learning rate and a larger β (K4), or stop when all rollbacks are used (C4).

    Factors build on those of the abandoned policy, so that a second rollback to one checkpoint goes on more carefully.
    """
    control = history[-1].control
    used = sum(record.decided == "roll_back" for record in history[:-1])
    if used >= policy.max_rollbacks:
        last = f"all {policy.max_rollbacks} rollbacks are used: the run ends with its best checkpoint"
        return Decision(kind="stop", reasons=(*faults, last), promote=False, control=control)
    learning_rate_factor = control.learning_rate_factor * policy.learning_rate_factor
    kl_coef = max(control.kl_coef, min(control.kl_coef * policy.kl_coef_factor, kl_coef_maximum))
    change = (
        f"rollback {used + 1} of {policy.max_rollbacks}: learning rate × {policy.learning_rate_factor:g}, "
        f"kl_coef {control.kl_coef:g} → {kl_coef:g}"
    )
    after = ControlState(
        kl_coef=kl_coef,
        kl_average_nats=None,
        ptx_coef=control.ptx_coef,
        learning_rate_factor=learning_rate_factor,
    )
    return Decision(kind="roll_back", reasons=(*faults, change), promote=False, control=after)


def _next_ptx_coef(
    history: tuple[GateRecord, ...], drops: list[BenchmarkScore], policy: DecisionConfig
) -> tuple[float, str]:
    """C1. Only a real drop counts as one; noise within the paired interval is steady ability."""
    gate = history[-1]
    current = gate.control.ptx_coef
    if current == 0.0:
        return 0.0, "ptx is off: ptx_coef stays 0" + (", nothing answers the drop" if drops else "")
    kept = _kept_before(history)
    worst = max((score.drop for score in drops), default=0.0)
    if not drops:
        worst = min(policy.tolerated_drop, _smoothed_drop([*kept, gate], policy))
    signals = PtxSignals(ability_drop=worst, reward_gain=_gain_since_last_gate(history), kl_nats=gate.kl_nats)
    ptx_coef, why = adjusted_ptx_coef(current, signals, policy)
    verdict = f"ptx_coef stays {current:g}" if ptx_coef == current else f"ptx_coef {current:g} → {ptx_coef:g}"
    return ptx_coef, f"{verdict}: {why}"


def _kept_before(history: tuple[GateRecord, ...]) -> list[GateRecord]:
    """Earlier gates whose policies were gone on from."""
    return [record for record in history[:-1] if record.decided != "roll_back"]


def _gain_since_last_gate(history: tuple[GateRecord, ...]) -> float:
    """Rise of the held-out reward, in standard deviations of the baseline."""
    kept = _kept_before(history)
    return history[-1].reward_gain - (kept[-1].reward_gain if kept else 0.0)


def _smoothed_drop(records: list[GateRecord], policy: DecisionConfig) -> float:
    """Moving average of the mean benchmark drop; 0 where no benchmark is configured."""
    drops = [sum(score.drop for score in one.benchmarks) / len(one.benchmarks) for one in records if one.benchmarks]
    return moving_average(drops, policy.smoothing) if drops else 0.0


def _in_words(score: BenchmarkScore) -> str:
    return (
        f"{score.name} fell by {score.drop:.2%} to {score.accuracy:.2%} (interval {score.drop_low:.2%} to "
        f"{score.drop_high:.2%}, p={score.p_value:.3g}, {score.items} items)"
    )


def _passed(gate: GateRecord, policy: DecisionConfig) -> str:
    drops = ", ".join(f"{score.name} {-score.drop:+.2%} (p={score.p_value:.2g})" for score in gate.benchmarks)
    ability = f"ability kept ({drops})" if gate.benchmarks else "no benchmark is configured"
    return (
        f"gate passed: {ability}; KL {gate.kl_nats:.4f} nats under {policy.kl_limit_nats:g}; "
        f"held-out reward {gate.reward_gain:+.3f} std of the baseline"
    )
