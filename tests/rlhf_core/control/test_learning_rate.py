from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.control.learning_rate import constant, inverse_sqrt_rule, late_rise, warmup_cosine
from rlhf_core.errors import ConfigError

COSINE = {"peak": 2.0, "warmup_steps": 4, "total_steps": 24, "floor_fraction": 0.1}


@pytest.mark.parametrize(
    ("step", "want"), [(0, 0.4), (1, 0.8), (3, 1.6), (4, 2.0), (14, 1.1), (24, 0.2), (25, 0.2), (10_000, 0.2)]
)
def test_the_cosine_goes_through_points_worked_by_hand(step, want):
    assert warmup_cosine(step, **COSINE) == pytest.approx(want)


def test_without_warmup_the_cosine_is_torchs():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=2.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20, eta_min=0.2)
    for step in range(20):
        got = warmup_cosine(step, peak=2.0, warmup_steps=0, total_steps=20, floor_fraction=0.1)
        assert got == pytest.approx(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()


def test_case_N08_without_warmup_the_first_step_has_the_whole_rate():
    assert constant(0, peak=3e-6) == 3e-6
    assert warmup_cosine(0, peak=3e-6, warmup_steps=0, total_steps=10, floor_fraction=0.1) == 3e-6


def test_a_constant_rate_rises_linearly_and_stays():
    assert [constant(step, peak=1.0, warmup_steps=3) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@given(st.integers(0, 200), st.integers(0, 50), st.integers(0, 100), st.floats(0, 1))
def test_a_rate_is_never_zero_before_the_floor_and_never_above_the_peak(step, warmup, total, floor):
    rate = warmup_cosine(step, peak=1e-5, warmup_steps=warmup, total_steps=total, floor_fraction=floor)
    assert 0 <= rate <= 1e-5 * (1 + 1e-12)
    if step <= warmup:
        assert rate > 0 or total <= warmup


def test_the_inverse_square_root_rule_by_hand_and_its_cap():
    assert inverse_sqrt_rule(10**6, 100, cap=1.0) == pytest.approx(3e-4, rel=1e-12)
    assert inverse_sqrt_rule(4 * 10**6, 400, cap=1.0) == pytest.approx(3e-4, rel=1e-12)
    assert inverse_sqrt_rule(135_000_000, 576, cap=1e-5) == 1e-5


@pytest.mark.parametrize("values", [(0, 1, 1.0), (1, 0, 1.0), (1, 1, 0.0), (1, 1, float("inf")), (1, 1, float("nan"))])
def test_a_rule_of_nothing_is_refused(values):
    with pytest.raises(ConfigError, match="parameter_count"):
        inverse_sqrt_rule(*values[:2], cap=values[2])


@pytest.mark.parametrize(
    ("step", "stalled_since", "want"),
    [
        (500, None, 1.0),
        (500, 20, 1.0),
        (700, 20, 1.0),
        (705, 20, 1.05),
        (720, 20, 1.2),
        (10_000, 20, 1.2),
        (805, 800, 1.05),
        (799, 800, 1.0),
    ],
)
def test_a_stall_raises_the_rate_late_linearly_and_to_a_bound(step, stalled_since, want):
    factor = late_rise(step, stalled_since=stalled_since, late_from=700, rise_steps=20, max_rise=0.2)
    assert factor == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize(
    "change", [{"rise_steps": 0}, {"max_rise": -0.1}, {"max_rise": 1.1}, {"max_rise": float("nan")}]
)
def test_a_rise_that_is_none_is_refused(change):
    with pytest.raises(ConfigError, match="late rise"):
        late_rise(0, **{"stalled_since": 0, "late_from": 0, "rise_steps": 1, "max_rise": 0.2, **change})
