from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.control.clip_range import adaptive_clip_range
from rlhf_core.errors import NumericsError


@given(st.floats(-5, 5))
def test_the_clip_range_is_the_formula_in_both_directions(kl_nats):
    assert adaptive_clip_range(kl_nats) == pytest.approx(0.2 * (1 - math.tanh(kl_nats - 0.01)), rel=1e-9)
    assert adaptive_clip_range(kl_nats, "widen") == pytest.approx(0.2 * (1 + math.tanh(kl_nats - 0.01)), rel=1e-9)


def test_above_the_centre_narrow_shrinks_and_widen_grows():
    assert adaptive_clip_range(0.01) == adaptive_clip_range(0.01, "widen") == 0.2
    assert adaptive_clip_range(0.11) == pytest.approx(0.2 * (1 - 0.0996680), rel=1e-6)
    assert adaptive_clip_range(0.11, "widen") == pytest.approx(0.2 * (1 + 0.0996680), rel=1e-6)


@given(st.floats(-1e300, 1e300), st.sampled_from(["narrow", "widen"]))
def test_the_clip_range_is_never_zero_and_never_above_its_double(kl_nats, direction):
    assert 0 < adaptive_clip_range(kl_nats, direction) <= 0.4


@pytest.mark.parametrize("kl_nats", [float("nan"), float("inf")])
def test_a_kl_that_is_no_number_is_refused(kl_nats):
    with pytest.raises(NumericsError, match="KL is"):
        adaptive_clip_range(kl_nats)
