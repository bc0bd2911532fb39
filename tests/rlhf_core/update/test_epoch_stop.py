from __future__ import annotations

import pytest

from rlhf_core.config.ppo import EpochStopConfig
from rlhf_core.errors import NumericsError
from rlhf_core.update.epoch_stop import epoch_stop_reason, mini_batch_stop_reason

LIMITS = EpochStopConfig()
HEALTHY = {"kl_nats": 0.02, "clip_fraction": 0.5, "mean_abs_advantage": 0.01, "epochs_done": 1}


def reason(**changes):
    return epoch_stop_reason(**{**HEALTHY, **changes}, max_epochs=4, limits=LIMITS)


def test_numbers_at_their_limits_let_the_epochs_go_on():
    assert reason() is None


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"kl_nats": 0.0201}, "kl"),
        ({"clip_fraction": 0.51}, "clip_fraction"),
        ({"mean_abs_advantage": 0.009}, "small_advantages"),
        ({"epochs_done": 4}, "epoch_limit"),
    ],
)
def test_each_limit_stops_the_epochs_under_its_own_name(change, want):
    assert reason(**change) == want


def test_the_gravest_reason_is_named_where_several_hold():
    assert reason(kl_nats=1.0, clip_fraction=0.9, epochs_done=4) == "kl"


def test_kl_is_also_asked_after_a_mini_batch():
    assert mini_batch_stop_reason(0.02, LIMITS) is None
    assert mini_batch_stop_reason(0.03, LIMITS) == "kl"


@pytest.mark.parametrize("name", ["kl_nats", "clip_fraction", "mean_abs_advantage"])
def test_a_number_that_is_none_is_refused_rather_than_compared(name):
    with pytest.raises(NumericsError, match=f"{name}=nan"):
        reason(**{name: float("nan")})
