"""The length limit falls while memory is scarce and comes back by the same steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.config.run import RunConfig
from rlhf_core.control.max_new_tokens import MaxNewTokens, max_new_tokens_controller
from rlhf_core.errors import ConfigError, NumericsError

USES = st.lists(st.floats(0, 1.2), max_size=40)


@pytest.mark.parametrize(
    ("configured", "floor", "uses", "limits"),
    [
        (64, 16, [0.85, 0.5], [64, 64]),
        (64, 16, [0.86, 0.9, 0.5, 0.85, 0.5], [48, 36, 48, 64, 64]),
        (64, 16, [1.0] * 7 + [0.1, 0.1], [48, 36, 27, 20, 16, 16, 16, 20, 27]),
        (64, 40, [1.0, 1.0, 1.0, 0.1], [48, 40, 40, 48]),
        (8, 16, [1.0, 1.0, 0.1], [8, 8, 8]),
        (20, 1, [1.0, 1.0, 0.1], [16, 16, 20]),
    ],
)
def test_limits_by_table(configured, floor, uses, limits):
    controller = MaxNewTokens(configured, floor=floor)
    assert [controller.observe(use) for use in uses] == limits


@given(configured=st.integers(1, 5000), floor=st.integers(1, 300), uses=USES, cut=st.integers(0, 40))
def test_the_limit_stays_in_its_bounds_comes_back_and_survives_being_stored(configured, floor, uses, cut):
    controller, other = (MaxNewTokens(configured, floor=floor) for _ in range(2))
    found: list[int] = []
    for number, use in enumerate(uses):
        if number == cut:
            stored, controller = controller.state_dict(), MaxNewTokens(configured, floor=floor)
            controller.load_state_dict(stored)
        before = controller.value
        found.append(controller.observe(use))
        assert min(16, configured) <= controller.floor <= found[-1] <= configured
        assert (found[-1] <= before) if use > 0.85 else (found[-1] >= before)
    assert found == [other.observe(use) for use in uses]
    for _ in range(len(uses)):
        controller.observe(0.0)
    assert controller.value == configured


def test_stored_cuts_beyond_the_floor_do_not_delay_the_return():
    controller = MaxNewTokens(64)
    controller.load_state_dict({"cuts": 100})
    assert controller.value == 16
    assert controller.observe(0.1) == 20


@pytest.mark.parametrize("use", [-0.1, float("nan"), float("inf")])
def test_a_use_that_is_none_is_refused(use):
    with pytest.raises(NumericsError):
        MaxNewTokens(64).observe(use)


@pytest.mark.parametrize("changes", [{"shrink": 1.0}, {"high_water": 0.0}, {"cuts": -1}])
def test_settings_that_cannot_steer_are_refused(changes):
    with pytest.raises(ConfigError):
        MaxNewTokens(64, **changes)


def test_memorys_cuts_are_factors_on_the_scheduled_limit():
    rollout = {"max_new_tokens": 128, "max_new_tokens_schedule": [[1, 32], [5, 128]]}
    config = RunConfig.model_validate(
        {
            "name": "x",
            "data": {"prompts": [{"path": "p"}]},
            "model": {"policy": "m"},
            "reward": {"scorer": "callable", "callable": {"path": "m:f"}},
            "ppo": {"ptx": {"enabled": False}},
            "rollout": rollout,
        }
    )
    limits = {(n, cuts): max_new_tokens_controller(config, cuts, n).value for n in (1, 4, 5) for cuts in (0, 1, 9)}
    assert limits == {
        (1, 0): 32, (1, 1): 24, (1, 9): 16, (4, 0): 32, (4, 1): 24, (4, 9): 16, (5, 0): 128, (5, 1): 96, (5, 9): 16,
    }  # fmt: skip
