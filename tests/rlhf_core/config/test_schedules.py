"""Sizes that grow with the iteration."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from rlhf_core.config.schedules import StepSchedule, size_at

steps = TypeAdapter(StepSchedule)


def test_the_size_is_that_of_the_last_step_begun():
    schedule = steps.validate_python([[3, 64], [10, 256]])
    sizes = {iteration: size_at(schedule, iteration, default=32) for iteration in (1, 2, 3, 9, 10, 99)}
    assert sizes == {1: 32, 2: 32, 3: 64, 9: 64, 10: 256, 99: 256}
    assert size_at((), 5, default=7) == 7


@pytest.mark.parametrize("bad", [[[0, 32]], [[5, 32], [5, 64]], [[9, 32], [2, 64]], [[1, 64], [2, 32]], [[1, 0]]])
def test_a_schedule_that_does_not_rise_is_refused_with_an_example(bad):
    with pytest.raises(ValidationError, match=r"as in \[\[1, 32\], \[20, 64\]\]"):
        steps.validate_python(bad)
