from __future__ import annotations

import pytest

from rlhf_core.control.schedules import stepwise
from rlhf_core.errors import ConfigError


@pytest.mark.parametrize(("iteration", "want"), [(0, 32), (9, 32), (10, 64), (29, 64), (30, 256), (1000, 256)])
def test_P8_a_size_holds_from_its_first_iteration_to_the_next_step(iteration, want):
    assert stepwise(iteration, [(0, 32), (10, 64), (30, 256)]) == want


def test_P9_a_single_step_holds_for_ever():
    assert stepwise(77, [(0, 8)]) == 8


@pytest.mark.parametrize(
    "steps", [[], [(1, 8)], [(0, 8), (0, 16)], [(0, 8), (20, 16), (10, 32)], [(0, 8), (5, 0)], [(-1, 8), (0, 16)]]
)
def test_a_schedule_that_is_not_sorted_from_zero_is_refused(steps):
    with pytest.raises(ConfigError, match="is none"):
        stepwise(3, steps)


def test_an_iteration_before_the_first_is_refused():
    with pytest.raises(ConfigError, match="iteration=-1"):
        stepwise(-1, [(0, 8)])
