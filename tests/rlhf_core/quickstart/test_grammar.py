"""Questions and the registers of answers."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from rlhf_core.quickstart.grammar import REGISTERS, draw_register, questions_about, write_response
from rlhf_core.quickstart.world import World, WorldSettings

WORLD = World(WorldSettings(), 0)


def mean_score(register: str, responses: int = 300) -> float:
    rng = random.Random(register)
    total = 0.0
    for _ in range(responses):
        question = rng.choice(WORLD.train_questions)
        facts = WORLD.facts_by_subject[question.subject]
        total += WORLD.judge.score(question, write_response(question, facts, REGISTERS[register], rng))
    return total / responses


def test_questions_are_distinct_and_of_every_domain():
    questions = questions_about(WORLD.facts)
    assert len({question.text for question in questions}) == len(questions)
    counts = Counter(question.domain for question in questions)
    assert len(counts) == 4 and len(set(counts.values())) == 1


def test_registers_are_drawn_by_their_shares():
    rng = random.Random(0)
    names = {register: name for name, register in REGISTERS.items()}
    counts = Counter(names[draw_register(rng)] for _ in range(20_000))
    for name, register in REGISTERS.items():
        assert counts[name] / 20_000 == pytest.approx(register.share, abs=0.015)
    assert sum(register.share for register in REGISTERS.values()) == pytest.approx(1.0)


def test_the_warm_register_is_a_minority_and_clearly_the_best():
    scores = {name: mean_score(name) for name in REGISTERS}
    assert REGISTERS["warm"].share <= 0.25
    assert scores["warm"] > scores["plain"] + 1.0
    assert scores["plain"] > max(scores["careless"], scores["cold"]) + 0.5


def test_a_wrong_rate_of_one_never_answers_rightly():
    rng = random.Random(3)
    for question in WORLD.train_questions[:200]:
        facts = WORLD.facts_by_subject[question.subject]
        response = write_response(question, facts, REGISTERS["plain"], rng, wrong_rate=1.0)
        reading = WORLD.judge.read(question, response)
        assert reading.curt_answers == 0
        assert question.fact is None or reading.right_answers == 0
