"""The judge of the quickstart's world: readings worked out by hand."""

from __future__ import annotations

import random

import pytest

from rlhf_core.quickstart.facts import ATTRIBUTES, Fact
from rlhf_core.quickstart.grammar import Question
from rlhf_core.quickstart.preference import Judge

ATTRIBUTE = {attribute.name: attribute for attribute in ATTRIBUTES}
FOOD = Fact(ATTRIBUTE["food"], "the otter", "fish", 1.0)
HOME = Fact(ATTRIBUTE["home"], "the otter", "river", 1.0)
JUDGE = Judge([FOOD, HOME])
ASKED = Question("What does the otter eat?", "animals", "the otter", FOOD, 1.0)
OPEN = Question("Tell me about the otter.", "animals", "the otter", None, 1.0)


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("It eats fish.", 2.0),
        ("Just fish.", 0.7),
        ("Thank you for asking me! It eats fish. It lives in the river. I hope that this helps you!", 5.2),
        ("It eats corn.", -1.0 - 1.5),
        ("Just corn.", -1.0 - 1.5),
        ("It eats fish. It lives in the barn.", 2.0 - 1.5),
        ("It eats fish. It eats fish. It eats fish.", 2.0 - 2 * 0.6),
        ("Why do you ask me? It eats fish.", 2.0 - 1.0),
        ("The stars are far away tonight.", -1.0 - 0.8),
        ("I do not know.", -1.0 - 0.5),
        ("It lives in the river.", -1.0 + 0.7),
        ("Fish the the otter", -1.0 - 1.0),
        ("", -1.0),
    ],
)
def test_a_response_scores_as_worked_out_by_hand(response, score):
    assert JUDGE.score(ASKED, response) == pytest.approx(score)


def test_any_true_fact_answers_an_open_question():
    assert JUDGE.score(OPEN, "Its home is the river.") == pytest.approx(2.0)


def test_a_very_long_response_is_worse():
    filler = " ".join(["Its home is the river."] * 3 + ["I like to count the clouds."] * 5)
    reading = JUDGE.read(ASKED, filler)
    assert reading.words > 36
    assert reading.score == pytest.approx(-1.0 + 0.7 - 0.8 * 5 - 0.6 * 3 - 1.0)


def test_the_noisy_judge_prefers_by_bradley_terry():
    rng = random.Random(0)
    better, worse = "It eats fish.", "Just fish. Its home is the river."
    gap = JUDGE.score(ASKED, better) - JUDGE.score(ASKED, worse)
    wins = sum(JUDGE.prefers_first(ASKED, better, worse, rng) for _ in range(4_000)) / 4_000
    assert gap == pytest.approx(0.6)
    assert wins == pytest.approx(0.7685, abs=0.02)  # 1 / (1 + e^-1.2)
