"""The critic's rate follows the actor's until it is set."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from rlhf_core.config.ppo import PPOConfig


def test_the_critics_rate_is_five_times_the_actors_that_is_set():
    assert PPOConfig().critic_optimizer.learning_rate == pytest.approx(5e-6)
    assert PPOConfig.model_validate({"actor": {"learning_rate": 3e-4}}).critic_optimizer.learning_rate == pytest.approx(
        1.5e-3
    )


@pytest.mark.parametrize("rate", [0.0, 2e-5])
def test_a_critic_rate_that_is_set_stands_and_the_rest_of_its_optimizer_with_it(rate):
    critic = {"learning_rate": rate, "warmup_steps": 7, "schedule": "constant", "max_grad_norm": 3.0}
    found = PPOConfig.model_validate({"actor": {"learning_rate": 3e-4}, "critic": critic}).critic_optimizer
    assert found.model_dump() | critic == found.model_dump()


def test_an_actor_rate_whose_fivefold_is_out_of_range_is_refused_with_what_to_do():
    with pytest.raises(ValidationError, match=r"Set ppo\.critic\.learning_rate, or lower"):
        PPOConfig.model_validate({"actor": {"learning_rate": 0.05}})
