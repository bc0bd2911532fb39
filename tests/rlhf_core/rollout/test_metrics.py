"""What is counted of an iteration's rollouts."""

from __future__ import annotations

import pytest

from rlhf_core.data.records import ROLLOUT_SCHEMA
from rlhf_core.rollout.filters import FilterChain, RuleFilter
from rlhf_core.rollout.metrics import acceptance_metrics, rollout_metrics
from rlhf_core.rollout.rejection import Sampled
from rlhf_core.rollout.replacement import replaced_frame
from rlhf_core.rollout.sampling import rollout_frame


def row(ids, reason=None, domain="a", ending="natural"):
    empty = dict.fromkeys(ROLLOUT_SCHEMA.names, 0)
    return empty | {"response_ids": ids, "rejected_by": reason, "domain": domain, "ending": ending}


KEPT = [row([1, 2, 1, 2, 1, 2, 1, 2]), row([3, 4], domain="b", ending="early"), row([1, 2], reason="unsafe")]
REJECTED = [row([5], reason="banned"), row([6], reason="unsafe", domain="b")]
SAMPLED = Sampled(rollout_frame(KEPT), rollout_frame(REJECTED), replaced_frame([]))


def test_variety_repetition_and_length_are_those_of_the_kept_responses():
    found = rollout_metrics(SAMPLED, places=4)
    want = {
        "rollout/response_tokens_mean": 4.0,
        "rollout/natural_fraction": 2 / 3,
        "rollout/early_fraction": 1 / 3,
        "rollout/attempts_mean": 5 / 4,
        "rollout/distinct_1": 4 / 12,
        "rollout/distinct_2": 3 / 9,
        "rollout/distinct_3": 2 / 6,
        "rollout/repeated_ngram_fraction": (3 / 5) / 3,
    }
    assert {name: found[name] for name in want} == pytest.approx(want)


def test_a_filters_share_is_of_what_it_saw_and_a_domains_of_what_was_drawn():
    chain = FilterChain([RuleFilter("banned", bool), RuleFilter("unsafe", bool), RuleFilter("low_reward", bool)])
    chain.texts.update(banned=5, unsafe=4)
    assert acceptance_metrics(SAMPLED, chain) == pytest.approx(
        {
            "rollout/acceptance_rate": 2 / 5,
            "rollout/penalised_fraction": 1 / 3,
            "rollout/replaced": 0.0,
            "rollout/rejected_banned": 1.0,
            "rollout/rejected_unsafe": 2.0,
            "rollout/acceptance_of_banned": 4 / 5,
            "rollout/acceptance_of_unsafe": 2 / 4,
            "rollout/acceptance_in_a": 1 / 3,
            "rollout/acceptance_in_b": 1 / 2,
        }
    )
