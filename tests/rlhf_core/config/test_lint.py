"""Lint warns about what is known to hurt, and about nothing in a sound configuration."""

from __future__ import annotations

import math
import re

import pytest
from scipy.stats import norm

from rlhf_core.config.lint import items_to_detect, lint
from rlhf_core.config.run import RunConfig

SOUND = {
    "name": "x",
    "data": {"prompts": [{"path": "p"}], "preferences": {"train": [{"path": "q"}]}, "ptx": [{"path": "t"}]},
    "model": {"policy": "m"},
    "evaluation": {"benchmarks": [{"name": "mmlu", "items": 5000}]},
}


def fields(change: dict) -> set[str]:
    return {warning.field for warning in lint(RunConfig.model_validate(SOUND | change))}


def test_a_sound_configuration_has_no_warning():
    assert fields({}) == set()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"ppo": {"critic": {"learning_rate": 1e-7}}}, "ppo.critic.learning_rate"),
        ({"ppo": {"clip_range": 0.6}}, "ppo.clip_range"),
        ({"reward": {"normalisation": "none"}}, "reward.normalisation"),
        ({"rollout": {"prompts_per_iteration": 4}}, "rollout"),
        ({"ppo": {"ptx": {"enabled": False}}}, "ppo.ptx.enabled"),
        ({"evaluation": {}}, "evaluation.benchmarks"),
        ({"evaluation": {"benchmarks": [{"name": "mmlu", "items": 50}]}}, "evaluation.benchmarks.mmlu"),
        ({"reward": {"scorer": "callable", "callable": {"path": "m:f"}}}, "reward.scorer"),
    ],
)
def test_each_harmful_setting_is_named(change, field):
    assert fields(change) == {field}


@pytest.mark.parametrize(
    ("items", "available", "words"),
    [
        (None, 220, r"^220 items \(in its files\).*about 427 are needed"),
        (500, 300, r"^300 items \(in its files\)"),
        (200, 300, r"^200 items \(asked for\)"),
        (200, None, r"^200 items \(asked for\)"),
        (None, 427, None),
        (None, 426, r"^426 items"),
        (500, 9000, None),
        (None, None, None),
    ],
)
def test_what_counts_is_the_number_of_items_that_will_be_used(items, available, words):
    config = RunConfig.model_validate(SOUND | {"evaluation": {"benchmarks": [{"name": "mmlu", "items": items}]}})
    warnings = lint(config, {} if available is None else {"mmlu": available})
    assert [warning.field for warning in warnings] == ["evaluation.benchmarks.mmlu"] * (words is not None)
    assert all(re.search(str(words), warning.message) for warning in warnings)


def test_the_number_of_items_follows_the_normal_approximation():
    n = items_to_detect(0.03, 0.95)
    z = 0.03 / math.sqrt(0.1 / n)
    assert z >= norm.ppf(0.975) > 0.03 / math.sqrt(0.1 / (n - 1))
