from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.control.kl_coef import AdaptiveKlCoef, PidKlCoef, ProportionalKlCoef
from rlhf_core.control.pid import PidErrors, PidGains
from rlhf_core.errors import ConfigError, NumericsError


def controller(**changes):
    return AdaptiveKlCoef(**{"value": 0.1, "target_nats": 0.02, **changes})


def proportional(**changes):
    settings = {"value": 0.1, "target_nats": 0.02, "horizon_rollouts": 100, "batch_rollouts": 50}
    return ProportionalKlCoef(**{**settings, **changes})


def pid(**changes):
    return PidKlCoef(**{"value": 0.1, "target_nats": 0.02, "gains": PidGains(0.2, 0.1, 0.05), **changes})


ALL = pytest.mark.parametrize("make", [controller, proportional, pid])


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


@ALL
@given(observed=st.lists(st.floats(-1e6, 1e6), max_size=30), start=st.floats(0.001, 5))
def test_case_N10_beta_stays_within_its_bounds_whatever_is_seen(make, observed, start):
    beta = make(value=start)
    for kl_nats in observed:
        assert 0.01 <= beta.observe(kl_nats) <= 0.5


@ALL
@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"target_nats": 0.0}, "kl.target_nats=0.0"),
        ({"target_nats": -0.1}, "kl.target_nats=-0.1"),
        ({"target_nats": float("nan")}, "kl.target_nats=nan"),
        ({"minimum": 0.0}, "kl.minimum=0.0"),
        ({"minimum": 0.6}, "kl.minimum=0.6 and kl.maximum=0.5"),
        ({"maximum": float("inf")}, "kl.maximum=inf"),
        ({"value": float("nan")}, "kl_coef=nan"),
    ],
)
def test_case_N10_settings_that_could_break_beta_are_refused(make, change, name):
    with pytest.raises(ConfigError, match=name):
        make(**change)


def test_a_smoothing_that_forgets_the_present_is_refused():
    with pytest.raises(ConfigError, match=r"kl\.smoothing=1\.0"):
        controller(smoothing=1.0)


@ALL
def test_a_kl_that_is_no_number_is_refused_and_changes_nothing(make):
    beta = make()
    beta.observe(0.02)
    before = beta.state_dict()
    with pytest.raises(NumericsError, match="KL is nan"):
        beta.observe(float("nan"))
    assert beta.state_dict() == before


@pytest.mark.parametrize("make", [lambda: controller(smoothing=0.7), proportional, pid])
@given(before=st.lists(st.floats(-1, 1), min_size=1, max_size=10), after=st.lists(st.floats(-1, 1), max_size=10))
def test_a_resumed_controller_goes_on_as_the_uninterrupted_one(make, before, after):
    whole, resumed = make(), make()
    for kl_nats in before:
        whole.observe(kl_nats)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert [whole.observe(kl_nats) for kl_nats in after] == [resumed.observe(kl_nats) for kl_nats in after]


@ALL
def test_a_state_without_beta_is_refused(make):
    with pytest.raises(ConfigError, match="lacks 'value'"):
        make().load_state_dict({"average_nats": 0.1})


@pytest.mark.parametrize(
    ("kl_nats", "want"), [(0.022, 0.105), (0.02, 0.1), (0.019, 0.0975), (0.5, 0.11), (0.0, 0.09), (-3.0, 0.09)]
)
def test_the_proportional_controller_follows_the_paper(kl_nats, want):
    """Worked by hand: half a horizon per batch, errors of 0.1, 0, -0.05 and the clip at ±0.2."""
    assert proportional().observe(kl_nats) == pytest.approx(want)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"horizon_rollouts": 0}, "kl.horizon_rollouts=0"),
        ({"horizon_rollouts": -5}, "kl.horizon_rollouts=-5"),
        ({"batch_rollouts": 500}, "a batch of 500 rollouts at low KL.*horizon above 100"),
        ({"batch_rollouts": 0}, "a batch of 0 rollouts"),
    ],
)
def test_case_N10_a_horizon_that_could_turn_beta_negative_is_refused(change, name):
    with pytest.raises(ConfigError, match=name):
        proportional(**change)


def test_case_N10_the_largest_batch_that_is_taken_keeps_beta_positive_without_its_bounds():
    beta = proportional(batch_rollouts=499, minimum=1e-300)
    for _ in range(10):
        assert beta.observe(0.0) > 0


def test_the_pid_raises_beta_above_the_target_by_its_gains_on_a_log_scale():
    beta = pid()
    assert beta.observe(0.03) == pytest.approx(0.1 * math.exp(0.1 * 0.5))
    assert beta.observe(0.05) == pytest.approx(0.1 * math.exp(0.05 + 0.2 * 0.5 + 0.1 * 1.0 + 0.05 * 0.5))
    assert (beta.errors.last, beta.errors.before_last) == pytest.approx((1.0, 0.5))


def test_the_pid_does_not_wind_up_at_a_bound():
    beta = pid(gains=PidGains(proportional=0.0, integral=0.1))
    for _ in range(1000):
        beta.observe(1.0)
    assert beta.value == 0.5
    assert beta.observe(0.0) == pytest.approx(0.5 * math.exp(-0.1))


def test_the_pid_goes_on_from_a_beta_that_a_rollback_changed():
    beta = pid(value=0.2, errors=PidErrors(last=0.0, before_last=0.0))
    assert beta.observe(0.02) == pytest.approx(0.2)


@pytest.mark.parametrize("make", [controller, proportional, pid])
def test_every_controller_brings_a_policy_that_obeys_beta_near_its_target(make):
    """A policy whose KL falls as β rises, 0.002 / β, has the target's 0.02 at β = 0.1."""
    beta = make(value=0.4)
    for _ in range(300):
        beta.observe(0.002 / beta.value)
    assert 0.002 / beta.value == pytest.approx(0.02, rel=0.5)
