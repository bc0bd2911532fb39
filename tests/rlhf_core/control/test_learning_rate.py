from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.control.learning_rate import constant, warmup_cosine

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
