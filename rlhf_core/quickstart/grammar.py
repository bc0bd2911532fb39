"""What people in the quickstart's world ask, and the better and worse ways to answer.

A response is a few sentences in one of four registers. The best register is a minority of what the SFT model is taught,
so that PPO has room to move towards it, at a small KL.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_core.quickstart.facts import Fact

POLITE_OPENERS = (
    "That is a good question!",
    "Thank you for asking me!",
    "I am happy to help you!",
    "Let me tell you about this!",
)
POLITE_CLOSERS = (
    "I hope that this helps you!",
    "Please ask me again soon!",
    "I wish you a nice day!",
    "You are always welcome here!",
)
RUDE_SENTENCES = (
    "Why do you ask me?",
    "That is a boring question.",
    "Now leave me alone.",
    "Do not ask me again.",
)
OFF_TOPIC_SENTENCES = (
    "The stars are far away tonight.",
    "My new shoes are too small.",
    "I like to count the clouds.",
    "The road is long and old.",
)
UNSURE_SENTENCES = ("I do not know.", "Who can say?")
ABOUT_QUESTIONS = ("Tell me about {s}.", "What do you know about {s}?", "Can you say something about {s}?")
CURT_ANSWER = "Just {v}."


@dataclass(frozen=True)
class Question:
    """A prompt; `fact` is what it asks for, None where anything about the subject answers it."""

    text: str
    domain: str
    subject: str
    fact: Fact | None
    weight: float


@dataclass(frozen=True)
class Register:
    """A manner of answering: the probability of each choice that a speaker makes."""

    share: float
    polite_opener: float
    rude_opener: float
    full_answer: float
    curt_answer: float
    second_fact: float
    repeated: float
    polite_closer: float
    rude_closer: float


REGISTERS: dict[str, Register] = {
    "warm": Register(0.16, 0.80, 0.00, 0.97, 0.02, 0.95, 0.02, 0.80, 0.00),
    "plain": Register(0.49, 0.04, 0.02, 0.80, 0.17, 0.45, 0.04, 0.04, 0.02),
    "careless": Register(0.25, 0.04, 0.05, 0.70, 0.15, 0.20, 0.40, 0.04, 0.05),
    "cold": Register(0.10, 0.02, 0.35, 0.40, 0.50, 0.05, 0.05, 0.02, 0.35),
}


def questions_about(facts: Sequence[Fact]) -> list[Question]:
    """Every question of the world, each phrasing once, in a fixed order."""
    asked = [fact for fact in facts if not fact.attribute.is_routine]
    questions = [
        Question(fact.fill(template), fact.domain, fact.subject, fact, fact.weight)
        for fact in asked
        for template in fact.attribute.questions
    ]
    subjects = {fact.subject: fact.domain for fact in asked}
    questions += [
        Question(template.format(s=subject), domain, subject, None, 1.0)
        for subject, domain in subjects.items()
        for template in ABOUT_QUESTIONS
    ]
    return questions


def draw_register(rng: random.Random) -> Register:
    """A register, by its share in the SFT data."""
    registers = list(REGISTERS.values())
    return rng.choices(registers, [register.share for register in registers])[0]


def write_response(
    question: Question, facts: Sequence[Fact], register: Register, rng: random.Random, *, wrong_rate: float = 0.0
) -> str:
    """A response to `question` in a register; `facts` are those of its subject.

    Args:
        wrong_rate: probability that the answer states another value than the true one.
    """
    sentences = _opener(register, rng)
    fact = question.fact or rng.choices(facts, [fact.weight for fact in facts])[0]
    body = _answer(question, fact, register, rng, wrong_rate)
    sentences.append(body)
    others = [other for other in facts if other != fact]
    if others and rng.random() < register.second_fact:
        other = rng.choice(others)
        if rng.random() < other.weight:
            sentences.append(other.fill(rng.choice(other.attribute.answers)))
    if rng.random() < register.repeated:
        sentences += [body] * rng.randint(1, 3)
    return " ".join(sentences + _closer(register, rng))


def _opener(register: Register, rng: random.Random) -> list[str]:
    draw = rng.random()
    if draw < register.polite_opener:
        return [rng.choice(POLITE_OPENERS)]
    if draw < register.polite_opener + register.rude_opener:
        return [rng.choice(RUDE_SENTENCES)]
    return []


def _closer(register: Register, rng: random.Random) -> list[str]:
    draw = rng.random()
    if draw < register.polite_closer:
        return [rng.choice(POLITE_CLOSERS)]
    if draw < register.polite_closer + register.rude_closer:
        return [rng.choice(RUDE_SENTENCES)]
    return []


def _answer(question: Question, fact: Fact, register: Register, rng: random.Random, wrong_rate: float) -> str:
    value = fact.value
    if rng.random() < wrong_rate:
        value = rng.choice([other for other in fact.attribute.values if other != fact.value])
    draw = rng.random()
    if draw < register.full_answer or (question.fact is None and draw < register.full_answer + register.curt_answer):
        return fact.fill(rng.choice(fact.attribute.answers), value)
    if draw < register.full_answer + register.curt_answer:
        return CURT_ANSWER.format(v=value)
    return rng.choice(OFF_TOPIC_SENTENCES + UNSURE_SENTENCES)
