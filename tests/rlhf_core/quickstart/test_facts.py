"""The facts of the quickstart's world."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.quickstart.facts import ATTRIBUTES, DOMAINS, RARE_FACT_WEIGHT, SUBJECTS, askable, draw_facts


def test_every_subject_has_one_value_for_every_attribute_of_its_domain():
    facts = draw_facts(random.Random(0), 24)
    expected = {(a.domain, a.name, s) for a in ATTRIBUTES for s in SUBJECTS[a.domain]}
    found = [(fact.domain, fact.attribute.name, fact.subject) for fact in facts]
    assert len(found) == len(expected) and set(found) == expected
    assert all(fact.value in fact.attribute.values for fact in facts)


@given(st.integers(0, 10_000))
def test_the_same_seed_draws_the_same_facts(seed):
    assert draw_facts(random.Random(seed), 4) == draw_facts(random.Random(seed), 4)


@given(st.integers(0, 10_000), st.integers(1, 24))
def test_values_are_spread_evenly_so_that_guessing_the_commonest_is_chance(seed, subjects):
    facts = draw_facts(random.Random(seed), subjects)
    for attribute in ATTRIBUTES:
        counts = Counter(fact.value for fact in facts if fact.attribute == attribute)
        uses = [counts[value] for value in attribute.values]
        assert max(uses) - min(uses) <= 1


def test_some_facts_are_rare_and_most_are_not():
    facts = draw_facts(random.Random(1), 24)
    rare = sum(fact.weight == RARE_FACT_WEIGHT for fact in facts) / len(facts)
    assert 0.3 < rare < 0.5


def test_no_two_questions_and_no_two_subjects_are_spelled_alike():
    facts = askable(draw_facts(random.Random(0), 24))
    questions = [fact.fill(template) for fact in facts for template in fact.attribute.questions]
    assert len(set(questions)) == len(questions)
    subjects = [subject for domain in DOMAINS for subject in SUBJECTS[domain]]
    assert len(set(subjects)) == len(subjects) == 96


def test_every_attribute_has_enough_values_for_a_four_way_item():
    assert all(len(set(attribute.values)) == len(attribute.values) >= 4 for attribute in ATTRIBUTES)
