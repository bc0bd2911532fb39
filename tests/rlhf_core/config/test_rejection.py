"""Settings of the filters are refused when they are read, each with what to do."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rlhf_core.config.rejection import RejectionConfig, SafetyConfig
from rlhf_core.config.rollout import RolloutConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"banned_patterns": ["x", "("]}, r"banned_patterns\[1\] = '\(' is no regular expression"),
        ({"banned_patterns": [""]}, r"banned_patterns\[0\] is empty and would reject every response"),
        ({"banned_words": ["fine", "c++"]}, r"'c\+\+' has signs that do not belong to a word \(\+\)"),
        ({"banned_words": ["--"]}, r"'--' has no letter or digit"),
        ({"policies": {"nonsense": "drop"}}, "nonsense|banned_word"),
        ({"replacement": {"replies": ["  "]}}, "a reply is empty"),
        ({"replacement": {"replies": []}}, "at least 1"),
    ],
)
def test_a_wrong_filter_is_named(settings, message):
    with pytest.raises(ValidationError, match=message):
        RejectionConfig.model_validate(settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": "m"}, "the packaged classifier has no path"),
        ({"kind": "chat"}, "the others need the folder or hub name"),
        ({"template": "{response}"}, "the packaged classifier reads the response alone"),
        ({"unsafe_labels": ["toxic"]}, "exactly with kind text-classification"),
        ({"kind": "text-classification", "path": "m"}, r"unsafe_labels: \[toxic\]"),
        ({"kind": "chat", "path": "m", "template": "{prompt}"}, r"it needs \{response\}"),
        ({"kind": "chat", "path": "m", "template": "{response} {x}"}, r"the places \['response', 'x'\]"),
        ({"kind": "chat", "path": "m", "template": "{response"}, "malformed"),
    ],
)
def test_a_classifier_without_what_it_needs_is_named(settings, message):
    with pytest.raises(ValidationError, match=message):
        SafetyConfig.model_validate(settings)


def test_a_filters_own_policy_comes_before_the_global_one():
    config = RejectionConfig(policy="drop", policies={"unsafe": "replace"})
    assert (config.policy_for("unsafe"), config.policy_for("banned")) == ("replace", "drop")
    assert config.may_replace and not RejectionConfig().may_replace


def test_the_length_limit_of_an_iteration_follows_its_schedule():
    config = RolloutConfig(max_new_tokens=64, max_new_tokens_schedule=((1, 16), (3, 32), (5, 64)))
    assert [config.max_new_tokens_in(n) for n in range(1, 8)] == [16, 16, 32, 32, 64, 64, 64]
    assert RolloutConfig(max_new_tokens=64).max_new_tokens_in(1) == 64


@pytest.mark.parametrize("steps", [((2, 16),), ((1, 4),), ((1, 16), (4, 65))])
def test_a_length_schedule_that_does_not_lead_to_the_limit_is_refused(steps):
    with pytest.raises(ValidationError, match=r"must begin at iteration 1 and rise .* as in \[\[1, 32\], \[20, 64\]\]"):
        RolloutConfig(max_new_tokens=64, max_new_tokens_schedule=steps)


def test_a_length_schedule_that_falls_is_refused():
    steps: Any = ((1, 32), (4, 16))
    with pytest.raises(ValidationError, match="not fall"):
        RolloutConfig(max_new_tokens=64, max_new_tokens_schedule=steps)
