from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.config.evaluation import DecisionConfig
from rlhf_core.control.ptx_coef import PtxSignals, adjusted_ptx_coef, moving_average
from rlhf_core.errors import DataError

POLICY = DecisionConfig(tolerated_drop=0.01, slow_reward_gain=0.02, flat_kl_nats=0.002)


@pytest.mark.parametrize(
    ("signals", "want", "reason"),
    [
        (PtxSignals(ability_drop=0.02, reward_gain=0.5, kl_nats=0.02), 0.1, "ability fell by 2.00%"),
        (PtxSignals(ability_drop=0.02, reward_gain=0.0, kl_nats=0.0), 0.1, "ability fell by 2.00%"),
        (PtxSignals(ability_drop=0.01, reward_gain=0.01, kl_nats=0.02), 0.025, "reward rises slowly"),
        (PtxSignals(ability_drop=-0.01, reward_gain=0.0, kl_nats=0.001), 0.025, "reward is flat .* KL near zero"),
        (PtxSignals(ability_drop=0.0, reward_gain=0.3, kl_nats=0.02), 0.05, "ability is steady .* and reward rises"),
    ],
)
def test_each_rule_gives_its_value_and_its_reason(signals, want, reason):
    value, why = adjusted_ptx_coef(0.05, signals, POLICY)
    assert value == pytest.approx(want)
    assert re.search(reason, why)


def test_a_bound_is_kept_and_named():
    up = adjusted_ptx_coef(0.4, PtxSignals(0.05, 0.0, 0.02), POLICY)
    down = adjusted_ptx_coef(0.01, PtxSignals(0.0, 0.0, 0.02), POLICY)
    assert (up[0], down[0]) == (0.5, 0.01)
    assert up[1].endswith("held at the bound 0.5")
    assert down[1].endswith("held at the bound 0.01")


@given(st.floats(0.01, 0.5), st.floats(-1, 1), st.floats(-5, 5), st.floats(0, 1))
def test_the_weight_stays_within_its_bounds(coef, drop, gain, kl):
    value, why = adjusted_ptx_coef(coef, PtxSignals(drop, gain, kl), POLICY)
    assert 0.01 <= value <= 0.5
    assert why


def test_a_moving_average_weighs_the_past():
    assert moving_average([0.4], 0.5) == 0.4
    assert moving_average([0.4, 0.2], 0.75) == pytest.approx(0.35)
    assert moving_average([0.4, 0.2, 0.3], 0.0) == pytest.approx(0.3)
    with pytest.raises(DataError, match="at least one benchmark score"):
        moving_average([], 0.5)
