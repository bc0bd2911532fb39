"""How good an answer is in the quickstart's world: the true judge behind its preference pairs.

The reward model has to learn this from pairs alone; because the judge is known, a run can be checked against it.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_core.quickstart.facts import Fact
from rlhf_core.quickstart.grammar import (
    CURT_ANSWER,
    OFF_TOPIC_SENTENCES,
    POLITE_CLOSERS,
    POLITE_OPENERS,
    RUDE_SENTENCES,
    UNSURE_SENTENCES,
    Question,
)

LONG_RESPONSE_WORDS = 36
_SENTENCE = re.compile(r"[^.!?]+[.!?]?")


@dataclass(frozen=True)
class Reading:
    """What a response does, sentence by sentence; counts, except the flags."""

    is_polite_at_start: bool
    is_polite_at_end: bool
    right_answers: int
    curt_answers: int
    wrong_statements: int
    further_facts: int
    rude: int
    off_topic: int
    unsure: int
    repeated: int
    garbled: int
    words: int

    @property
    def score(self) -> float:
        """Quality in the units of a log-odds: a difference of 1 is preferred 73 times in 100."""
        answered = 2.0 if self.right_answers else 0.7 if self.curt_answers else -1.0
        return (
            answered
            + 1.25 * self.is_polite_at_start
            + 1.25 * self.is_polite_at_end
            + 0.7 * min(self.further_facts, 1)
            - 1.5 * min(self.wrong_statements, 2)
            - 1.0 * self.rude
            - 0.8 * self.off_topic
            - 0.5 * self.unsure
            - 0.6 * min(self.repeated, 3)
            - 1.0 * min(self.garbled, 3)
            - 1.0 * (self.words > LONG_RESPONSE_WORDS)
        )


class Judge:
    """Reads responses against the facts of one world."""

    def __init__(self, facts: Sequence[Fact]) -> None:
        """Write down every answer that the grammar can give about the facts' subjects, true or not."""
        self._claims = {
            (fact.subject, fact.fill(template, value)): (fact, value == fact.value)
            for fact in facts
            for template in fact.attribute.answers
            for value in fact.attribute.values
        }

    def read(self, question: Question, response: str) -> Reading:
        """Take a response apart; a sentence outside the grammar, or about another domain, counts as garbled."""
        sentences = [match.group().strip() for match in _SENTENCE.finditer(response) if match.group().strip()]
        count = Counter(self._kind(question, sentence) for sentence in sentences)
        repeated = len(sentences) - len(set(sentences))
        return Reading(
            is_polite_at_start=bool(sentences) and sentences[0] in POLITE_OPENERS,
            is_polite_at_end=len(sentences) > 1 and sentences[-1] in POLITE_CLOSERS,
            right_answers=count["right"],
            curt_answers=count["curt"],
            wrong_statements=count["wrong"],
            further_facts=count["further"],
            rude=count["rude"],
            off_topic=count["off topic"],
            unsure=count["unsure"],
            repeated=repeated,
            garbled=count["garbled"],
            words=len(response.split()),
        )

    def score(self, question: Question, response: str) -> float:
        """The quality of a response, in log-odds units."""
        return self.read(question, response).score

    def prefers_first(self, question: Question, first: str, second: str, rng: random.Random) -> bool:
        """Draw the preference of a noisy judge: Bradley-Terry on the scores (Bradley & Terry 1952)."""
        difference = self.score(question, first) - self.score(question, second)
        return rng.random() < 1.0 / (1.0 + math.exp(-2.0 * difference))

    def _kind(self, question: Question, sentence: str) -> str:
        for kind, known in _STOCK_SENTENCES.items():
            if sentence in known:
                return kind
        if question.fact is not None and sentence == CURT_ANSWER.format(v=question.fact.value):
            return "curt"
        if question.fact is not None and sentence in _curt_answers(question.fact):
            return "wrong"
        fact, is_true = self._claims.get((question.subject, sentence), (None, False))
        if fact is None:
            return "garbled"
        if not is_true:
            return "wrong"
        return "right" if question.fact in (None, fact) else "further"


_STOCK_SENTENCES = {
    "polite": frozenset(POLITE_OPENERS + POLITE_CLOSERS),
    "rude": frozenset(RUDE_SENTENCES),
    "off topic": frozenset(OFF_TOPIC_SENTENCES),
    "unsure": frozenset(UNSURE_SENTENCES),
}


def _curt_answers(fact: Fact) -> frozenset[str]:
    return frozenset(CURT_ANSWER.format(v=value) for value in fact.attribute.values)
