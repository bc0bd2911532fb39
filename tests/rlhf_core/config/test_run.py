"""What the parts of a run's configuration ask of each other."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rlhf_core.config.cluster import ClusterConfig
from rlhf_core.config.run import RunConfig


def config(**sections: Any) -> RunConfig:
    settings = {
        "name": "x",
        "data": {"prompts": [{"path": "p"}]},
        "model": {"policy": "m"},
        "reward": {"scorer": "callable", "callable": {"path": "m:f"}},
        "ppo": {"ptx": {"enabled": False}},
    }
    return RunConfig.model_validate(settings | sections)


@pytest.mark.parametrize("cut", [{"top_p": 0.8}, {"top_k": 40}])
def test_case_K02_sampling_that_cuts_the_support_is_refused_with_the_reason(cut):
    with pytest.raises(ValidationError, match="the ratio would not be 1 before the first step"):
        config(rollout=cut)


@pytest.mark.parametrize(
    "sections",
    [
        {"algorithm": {"kind": "grpo"}},
        {"algorithm": {"kind": "rloo"}},
        {"algorithm": {"kind": "reinforce_plus_plus", "subtract_group_mean": True}},
        {"algorithm": {"dynamic_sampling": {"enabled": True}}},
        {"reward": {"scorer": "callable", "callable": {"path": "m:f"}, "normalisation": "group"}},
    ],
)
def test_what_compares_responses_to_one_prompt_needs_several_of_them(sections):
    with pytest.raises(ValidationError, match=r"rollout\.samples_per_prompt \(or its schedule\) is 1"):
        config(**sections)
    assert config(**sections, rollout={"samples_per_prompt": 4})
    assert config(**sections, rollout={"samples_schedule": [[1, 4]]})


def test_where_beta_acts_follows_the_algorithm_unless_it_is_said():
    groups = {"samples_per_prompt": 8}
    in_reward = {
        kind: config(algorithm={"kind": kind}, rollout=groups).algorithm.kl_in_reward
        for kind in ("ppo", "grpo", "rloo", "reinforce_plus_plus")
    }
    assert in_reward == {"ppo": True, "grpo": False, "rloo": True, "reinforce_plus_plus": True}
    assert config(algorithm={"kind": "grpo", "kl_placement": "reward"}, rollout=groups).algorithm.kl_in_reward


def test_optimizer_steps_follow_the_schedules_of_prompts_samples_and_mini_batches():
    found = config(
        rounds=1,
        iterations_per_round=4,
        rollout={"prompts_per_iteration": 8, "prompts_schedule": [[3, 16]], "samples_schedule": [[1, 2], [4, 4]]},
        ppo={"ptx": {"enabled": False}, "epochs": 3, "mini_batch_rollouts": 8, "mini_batch_schedule": [[4, 32]]},
    )
    assert [found.optimizer_steps_in(i) for i in (1, 2, 3, 4)] == [3 * 2, 3 * 2, 3 * 4, 3 * 2]
    assert found.optimizer_steps == 30


def test_a_schedule_whose_sizes_the_micro_batch_does_not_divide_is_refused():
    with pytest.raises(ValidationError, match=r"does not divide the mini-batch of 12"):
        config(ppo={"ptx": {"enabled": False}, "micro_batch_rollouts": 8, "mini_batch_schedule": [[2, 12]]})


@pytest.mark.parametrize(
    ("ppo", "message"),
    [
        ({"clip_range": 0.2, "clip_range_high": 0.1}, "lies below ppo.clip_range"),
        ({"entropy_coef": -0.1}, "is negative"),
        ({"importance_cap": 0.5}, "greater than or equal to 1"),
    ],
)
def test_coefficients_that_contradict_their_meaning_are_refused(ppo, message):
    with pytest.raises(ValidationError, match=message):
        config(ppo={"ptx": {"enabled": False}} | ppo)


def test_a_sentence_or_text_cannot_count_negatively_in_the_value_head():
    model = {"policy": "m", "value_head": "hierarchical"}
    with pytest.raises(ValidationError, match=r"value_head_weights\.1\s+Input should be greater than or equal to 0"):
        config(model={**model, "value_head_weights": [0.3, -0.1]})
    assert config(model={**model, "value_head_weights": [0.3, 0]})


def test_an_adaptive_temperature_beside_statistics_over_batches_is_refused():
    reward = {"scorer": "callable", "callable": {"path": "m:f"}, "adaptive_temperature": True}
    with pytest.raises(ValidationError, match="no longer fit"):
        config(reward=reward | {"normalisation": "running"})


def test_case_N10_a_horizon_at_which_one_batch_could_take_beta_to_zero_is_refused_before_the_run():
    with pytest.raises(ValidationError, match=r"kl\.horizon_rollouts=6 with 32 rollouts .* above 6\.4"):
        config(kl={"kind": "proportional", "horizon_rollouts": 6})
    assert config(kl={"kind": "proportional", "horizon_rollouts": 7})


@pytest.mark.parametrize(
    ("cluster", "stage"),
    [
        ({"ranks": 2, "zero_stage": 2}, 2),
        ({"ranks": 1, "zero_stage": 2}, 0),
        ({"ranks": 1, "zero_stage": 3, "offload_parameters": True}, 3),
        ({"ranks": 1, "zero_stage": 1, "offload_optimizer": True}, 1),
    ],
)
def test_a_single_rank_shards_only_what_it_offloads(cluster, stage):
    assert ClusterConfig.model_validate({"engine": "ray", **cluster}).sharding_stage == stage
