"""The configuration chooses the controller of β."""

from __future__ import annotations

import pytest

from rlhf_core.config.ppo import KlControllerConfig
from rlhf_core.control.kl_coef import AdaptiveKlCoef, PidKlCoef, ProportionalKlCoef
from rlhf_core.control.kl_controllers import kl_controller
from rlhf_core.errors import ConfigError


@pytest.mark.parametrize(
    ("kind", "expected", "after"),
    [
        ("adaptive", AdaptiveKlCoef, 0.2),
        ("proportional", ProportionalKlCoef, 0.1 * (1 + 0.2 * 50 / 100)),
        ("pid", PidKlCoef, 0.1 * 2.718281828459045**0.3),
    ],
)
def test_each_kind_answers_a_kl_far_over_its_target_in_its_own_way(kind, expected, after):
    config = KlControllerConfig(kind=kind, target_nats=0.02, horizon_rollouts=100, integral_gain=0.3)
    controller = kl_controller(config, 0.1, batch_rollouts=50)
    assert isinstance(controller, expected)
    assert controller.observe(1.0) == pytest.approx(after)


def test_a_fixed_coefficient_has_no_controller():
    with pytest.raises(ConfigError, match=r"kl\.kind='fixed'"):
        kl_controller(KlControllerConfig(kind="fixed"), 0.1, batch_rollouts=8)
