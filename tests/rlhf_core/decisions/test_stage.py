"""A decision is kept with its reasons, and earlier ones are read back."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from rlhf_core.config.evaluation import DecisionConfig
from rlhf_core.config.ppo import KlControllerConfig
from rlhf_core.data.events import read_events
from rlhf_core.data.refs import CheckpointRef, ControlState, EvaluationResult
from rlhf_core.data.store import RunFolder
from rlhf_core.decisions.stage import decision_path, earlier_records, run_stage


@pytest.fixture
def runtime(tmp_path):
    config = SimpleNamespace(decisions=DecisionConfig(max_rollbacks=1), kl=KlControllerConfig(maximum=0.15))
    return SimpleNamespace(folder=RunFolder(tmp_path), config=config)


def evaluation(step: int, gain: float = 0.5, kl_nats: float = 0.02) -> EvaluationResult:
    return EvaluationResult(
        step=step,
        held_out_reward=gain,
        held_out_reward_std=1.0,
        reward_gain=gain,
        reward_gain_low=gain - 0.1,
        reward_gain_high=gain + 0.1,
        held_out_kl_nats=kl_nats,
        path="evaluation",
    )


def decided(runtime, number, **facts):
    control = ControlState(kl_coef=0.1, ptx_coef=0.05)
    policy = CheckpointRef(step=5 * number, path="checkpoint", control=control)
    return run_stage(runtime, number, policy, evaluation(5 * number, **facts), evaluation(0, 0.0))


def test_rollbacks_of_earlier_rounds_are_remembered_from_the_folder(runtime):
    first = decided(runtime, 1, gain=math.nan)
    assert first.kind == "roll_back" and first.control.kl_coef == 0.15
    second = decided(runtime, 2, kl_nats=math.inf)
    assert second.kind == "stop"
    (record,) = earlier_records(runtime.folder, 2)
    assert record.decided == "roll_back" and math.isnan(record.reward_gain)


def test_a_decision_that_stands_is_not_taken_again(runtime):
    first = decided(runtime, 1)
    assert decided(runtime, 1, gain=math.nan) == first
    assert "NaN" not in decision_path(runtime.folder, 1).read_text()
    assert [row["kind"] for row in read_events(runtime.folder)] == ["decision"]


def test_a_changed_ptx_coef_is_an_event_with_its_reason(runtime):
    decision = decided(runtime, 1, gain=0.0)
    assert decision.kind == "adjust_ptx"
    (event,) = [row for row in read_events(runtime.folder) if row["kind"] == "ptx_coef"]
    assert event["facts"] == {"round": 1, "iteration": 5, "before": 0.05, "after": 0.025}
    assert "0.05 → 0.025" in event["message"] and "rises slowly" in event["message"]
