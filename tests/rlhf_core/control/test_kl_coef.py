from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.control.kl_coef import AdaptiveKlCoef
from rlhf_core.errors import ConfigError, NumericsError


def controller(**changes):
    return AdaptiveKlCoef(**{"value": 0.1, "target_nats": 0.02, **changes})


@pytest.mark.parametrize(
    ("kl_nats", "want"), [(0.031, 0.2), (0.03, 0.1), (0.02, 0.1), (0.0134, 0.1), (0.0133, 0.05), (-0.001, 0.05)]
)
def test_beta_doubles_above_the_band_halves_below_it_and_rests_within(kl_nats, want):
    beta = controller()
    assert beta.observe(kl_nats) == pytest.approx(want)
    assert beta.value == pytest.approx(want)


def test_the_moving_average_is_what_is_compared():
    beta = controller(smoothing=0.5)
    beta.observe(0.02)
    assert beta.observe(0.036) == 0.1
    assert beta.average_nats == pytest.approx(0.028)
    assert beta.observe(0.036) == 0.2
    assert beta.average_nats == pytest.approx(0.032)


@given(st.lists(st.floats(-10, 10), max_size=30), st.floats(0.001, 5), st.floats(0, 0.99))
def test_case_N10_beta_stays_within_its_bounds_whatever_is_seen(observed, start, smoothing):
    beta = controller(value=start, smoothing=smoothing)
    for kl_nats in observed:
        assert 0.01 <= beta.observe(kl_nats) <= 0.5


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"target_nats": 0.0}, "kl.target_nats=0.0"),
        ({"target_nats": -0.1}, "kl.target_nats=-0.1"),
        ({"target_nats": float("nan")}, "kl.target_nats=nan"),
        ({"minimum": 0.0}, "kl.minimum=0.0"),
        ({"minimum": 0.6}, "kl.minimum=0.6 and kl.maximum=0.5"),
        ({"maximum": float("inf")}, "kl.maximum=inf"),
        ({"smoothing": 1.0}, "kl.smoothing=1.0"),
        ({"value": float("nan")}, "kl_coef=nan"),
    ],
)
def test_case_N10_settings_that_could_break_beta_are_refused(change, name):
    with pytest.raises(ConfigError, match=name):
        controller(**change)


def test_a_kl_that_is_no_number_is_refused_and_changes_nothing():
    beta = controller()
    beta.observe(0.02)
    before = beta.state_dict()
    with pytest.raises(NumericsError, match="KL is nan"):
        beta.observe(float("nan"))
    assert beta.state_dict() == before


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=10), st.lists(st.floats(-1, 1), max_size=10))
def test_a_resumed_controller_goes_on_as_the_uninterrupted_one(before, after):
    whole, resumed = controller(smoothing=0.7), controller(smoothing=0.7)
    for kl_nats in before:
        whole.observe(kl_nats)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert [whole.observe(kl_nats) for kl_nats in after] == [resumed.observe(kl_nats) for kl_nats in after]


def test_a_state_without_beta_is_refused():
    with pytest.raises(ConfigError, match="lacks 'value'"):
        controller().load_state_dict({"average_nats": 0.1})
