"""Every branch of the decision, and what no history may lead to."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.config.evaluation import DecisionConfig
from rlhf_core.data.refs import BenchmarkScore, ControlState
from rlhf_core.decisions.decide import decide
from rlhf_core.decisions.records import GateRecord
from rlhf_core.errors import DataError

POLICY = DecisionConfig(max_rollbacks=2)
BETA_MAXIMUM = 0.5


def score(drop: float = 0.0, *, low: float | None = None, p_value: float | None = None) -> BenchmarkScore:
    is_real = drop > 0 if low is None else low > 0
    low = (drop / 2 if drop > 0 else drop - 0.02) if low is None else low
    return BenchmarkScore(
        name="mmlu",
        accuracy=0.5 - drop,
        low=0.4 - drop,
        high=0.6 - drop,
        items=500,
        drop=drop,
        drop_low=low,
        drop_high=drop + 0.02,
        p_value=(0.001 if is_real else 0.6) if p_value is None else p_value,
    )


def gate(*scores: BenchmarkScore, number: int = 1, **changes: object) -> GateRecord:
    facts: dict[str, object] = {
        "round_number": number,
        "step": 5 * number,
        "control": ControlState(kl_coef=0.1, ptx_coef=0.05),
        "benchmarks": scores,
        "perplexity": 20.0,
        "reward_gain": 0.5,
        "reward_gain_high": 0.7,
        "kl_nats": 0.02,
    }
    return GateRecord.model_validate(facts | changes)


@pytest.mark.parametrize(
    ("record", "kind", "promote", "ptx_coef", "words"),
    [
        (gate(score(0.0)), "continue", True, 0.05, "gate passed: ability kept .mmlu"),
        (gate(), "continue", True, 0.05, "gate passed: no benchmark is configured"),
        (gate(score(-0.04)), "continue", True, 0.05, "gate passed"),
        (gate(score(0.02)), "adjust_ptx", False, 0.1, r"mmlu fell by 2.00%.*over the tolerated 1.00%: not promoted"),
        (gate(score(0.0), score(0.02)), "adjust_ptx", False, 0.1, "not promoted"),
        (gate(score(0.02, low=-0.01)), "continue", True, 0.05, "gate passed"),
        (gate(score(0.02, low=0.002, p_value=0.125)), "continue", True, 0.05, "gate passed"),
        (gate(score(0.02, low=-0.001, p_value=0.04)), "continue", True, 0.05, "gate passed"),
        (gate(score(0.01)), "continue", True, 0.05, "gate passed"),
        (gate(score(0.2, low=-0.01)), "continue", True, 0.05, "gate passed"),
        (gate(score(), reward_gain=0.01), "adjust_ptx", True, 0.025, "reward rises slowly"),
        (gate(score(), reward_gain=0.0, kl_nats=0.0), "adjust_ptx", True, 0.025, "KL near zero"),
        (gate(score(), reward_gain=-0.5, reward_gain_high=-0.1), "adjust_ptx", False, 0.025, "below the baseline's"),
        (gate(score(0.04)), "roll_back", False, 0.05, r"mmlu fell by 4.00%.*over the rollback limit of 3.00%"),
        (gate(score(), kl_nats=0.11), "roll_back", False, 0.05, "KL of 0.1100 nats per token is over the limit of 0.1"),
        (gate(score(), kl_nats=math.nan), "roll_back", False, 0.05, "held-out KL is not finite"),
        (gate(score(), reward_gain=math.nan), "roll_back", False, 0.05, "held-out reward is not finite"),
        (gate(score(), perplexity=math.inf), "roll_back", False, 0.05, "perplexity is not finite"),
        (gate(score(), perplexity=None), "continue", True, 0.05, "gate passed"),
    ],
)
def test_each_measurement_leads_to_its_decision(record, kind, promote, ptx_coef, words):
    decision = decide((record,), POLICY, kl_coef_maximum=BETA_MAXIMUM)
    assert (decision.kind, decision.promote) == (kind, promote)
    assert decision.control.ptx_coef == pytest.approx(ptx_coef)
    assert any(_found(words, reason) for reason in decision.reasons), decision.reasons


def test_a_rollback_lowers_the_learning_rate_and_raises_beta_within_its_bound():
    control = ControlState(kl_coef=0.3, ptx_coef=0.05, learning_rate_factor=0.5, kl_average_nats=0.2)
    decision = decide((gate(score(0.1), control=control),), POLICY, kl_coef_maximum=0.5)
    assert decision.control == ControlState(kl_coef=0.5, ptx_coef=0.05, learning_rate_factor=0.25, kl_average_nats=None)
    assert "rollback 1 of 2: learning rate × 0.5, kl_coef 0.3 → 0.5" in decision.reasons


def test_rollbacks_are_counted_over_the_whole_run_and_then_it_stops():
    history: tuple[GateRecord, ...] = ()
    kinds: list[str] = []
    for number, drop in enumerate([0.1, 0.0, 0.1, 0.1], start=1):
        record = gate(score(drop), number=number, reward_gain=0.5 * number)
        decision = decide((*history, record), POLICY, kl_coef_maximum=BETA_MAXIMUM)
        kinds.append(decision.kind)
        history = (*history, record.model_copy(update={"decided": decision.kind}))
    assert kinds == ["roll_back", "continue", "roll_back", "stop"]
    assert "all 2 rollbacks are used" in decision.reasons[-1] and not decision.promote


def test_the_rewards_rise_is_counted_from_the_last_gate_that_was_kept():
    kept = gate(score(), number=1, reward_gain=0.5, decided="continue")
    abandoned = gate(score(), number=2, reward_gain=0.1, decided="roll_back")
    now = gate(score(), number=3, reward_gain=0.51)
    decision = decide((kept, abandoned, now), POLICY, kl_coef_maximum=BETA_MAXIMUM)
    assert decision.kind == "adjust_ptx" and "rises slowly (+0.010 std)" in decision.reasons[-1]


def test_without_ptx_a_tolerable_drop_is_named_and_changes_nothing():
    control = ControlState(kl_coef=0.1, ptx_coef=0.0)
    decision = decide((gate(score(0.02), control=control),), POLICY, kl_coef_maximum=BETA_MAXIMUM)
    assert (decision.kind, decision.promote, decision.control) == ("continue", False, control)
    assert "ptx is off" in decision.reasons[-1]


def test_a_history_without_gates_is_refused():
    with pytest.raises(DataError, match="no gate"):
        decide((), POLICY, kl_coef_maximum=BETA_MAXIMUM)


numbers = st.floats(-0.2, 0.2) | st.just(math.nan) | st.just(math.inf)
gates = st.builds(
    lambda drop, low, p, gain, kl: gate(
        score(drop, low=low, p_value=p), reward_gain=gain, reward_gain_high=gain + 0.1, kl_nats=abs(kl)
    ),
    st.floats(-0.1, 0.1),
    st.floats(-0.1, 0.1),
    st.floats(0, 1),
    numbers,
    numbers,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(gates, min_size=1, max_size=8))
def test_no_history_leaves_the_bounds_promotes_a_failed_gate_or_rolls_back_too_often(records):
    history: tuple[GateRecord, ...] = ()
    control = ControlState(kl_coef=0.1, ptx_coef=0.05)
    for record in records:
        current = record.model_copy(update={"control": control, "round_number": len(history) + 1})
        decision = decide((*history, current), POLICY, kl_coef_maximum=BETA_MAXIMUM)
        assert POLICY.ptx_minimum <= decision.control.ptx_coef <= POLICY.ptx_maximum
        assert 0.1 <= decision.control.kl_coef <= BETA_MAXIMUM
        assert decision.control.learning_rate_factor >= 0.5**POLICY.max_rollbacks
        if decision.promote:
            measured = (current.reward_gain, current.kl_nats)
            assert all(math.isfinite(value) for value in measured) and current.kl_nats <= POLICY.kl_limit_nats
            (only,) = current.benchmarks
            assert only.drop <= POLICY.tolerated_drop or only.drop_low <= 0 or only.p_value >= 0.05
            assert decision.kind in ("continue", "adjust_ptx")
        history = (*history, current.model_copy(update={"decided": decision.kind}))
        control = decision.control
        if decision.kind == "stop":
            break
    assert sum(record.decided == "roll_back" for record in history) <= POLICY.max_rollbacks


def _found(words: str, reason: str) -> bool:
    return re.search(words, reason) is not None
