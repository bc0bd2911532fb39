from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.control.pid import PidErrors, PidGains, pid_increment
from rlhf_core.errors import ConfigError

GAINS = PidGains(proportional=0.5, integral=0.25, derivative=0.125)
errors = st.lists(st.floats(-10, 10), min_size=1, max_size=12)


def positions(seen, gains):
    """What the increments add up to, from 0."""
    past, position, result = PidErrors(), 0.0, []
    for error in seen:
        increment, past = pid_increment(error, past, gains)
        position += increment
        result.append(position)
    return result


@given(errors)
def test_increments_add_up_to_the_textbooks_pid(seen):
    """Oracle: Kp·e + Ki·Σe + Kd·Δe, from the first error on, whose proportional part is what it starts at."""
    want = [
        GAINS.proportional * (error - seen[0])
        + GAINS.integral * sum(seen[: t + 1])
        + GAINS.derivative * (error - seen[t - 1] if t else 0.0)
        for t, error in enumerate(seen)
    ]
    assert positions(seen, GAINS) == pytest.approx(want, rel=1e-9, abs=1e-9)


def test_the_first_error_gives_no_kick():
    increment, past = pid_increment(4.0, PidErrors(), GAINS)
    assert increment == 1.0
    assert past == PidErrors(last=4.0, before_last=None)
    assert pid_increment(2.0, past, GAINS) == (-0.75, PidErrors(last=2.0, before_last=4.0))


def test_it_brings_a_plant_to_its_target_and_holds_it():
    past, setting = PidErrors(), 0.0
    for _ in range(200):
        error = 3.0 - 2.0 * setting
        increment, past = pid_increment(error, past, PidGains())
        setting += increment
    assert 2.0 * setting == pytest.approx(3.0, abs=1e-6)


@pytest.mark.parametrize(
    "gains",
    [{"proportional": -0.1}, {"integral": 0.0}, {"integral": float("nan")}, {"derivative": float("inf")}],
)
def test_gains_that_cannot_steer_are_refused(gains):
    with pytest.raises(ConfigError, match=next(iter(gains))):
        PidGains(**gains)
