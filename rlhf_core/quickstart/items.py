"""Multiple-choice items about the quickstart's facts, in the file formats of MMLU and HellaSwag."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_core.quickstart.facts import DOMAINS, Fact

DEV_ITEMS_PER_SUBJECT = 5
_LETTERS = "ABCD"


@dataclass(frozen=True)
class Item:
    """`context` is followed by exactly one of four `choices`."""

    label: str
    context: str
    choices: tuple[str, str, str, str]
    answer: int


def question_items(facts: Sequence[Fact], rng: random.Random) -> dict[str, list[Item]]:
    """One item a fact that can be asked, by domain; the wrong choices are other values of its attribute."""
    used = _values_in_use(facts)
    items: dict[str, list[Item]] = {domain: [] for domain in DOMAINS}
    for fact in facts:
        if not fact.attribute.is_routine:
            values, answer = _choices(fact, used, rng)
            question = fact.fill(rng.choice(fact.attribute.questions))
            items[fact.domain].append(Item(fact.domain, question, values, answer))
    return items


def split_dev(items: dict[str, list[Item]]) -> tuple[dict[str, list[Item]], dict[str, list[Item]]]:
    """Return `(dev, test)`: the first few of each subject serve as examples and are not asked again."""
    count = DEV_ITEMS_PER_SUBJECT
    return {key: rows[:count] for key, rows in items.items()}, {key: rows[count:] for key, rows in items.items()}


def scene_items(facts: Sequence[Fact], rng: random.Random) -> list[Item]:
    """One item a fact: a scene, and four ways in which it goes on."""
    used = _values_in_use(facts)
    items: list[Item] = []
    for fact in facts:
        values, answer = _choices(fact, used, rng)
        first, second, third, fourth = (fact.attribute.ending.format(v=value) for value in values)
        scene = fact.fill(fact.attribute.scene)
        items.append(Item(scene_label(fact), scene, (first, second, third, fourth), answer))
    return items


def scene_label(fact: Fact) -> str:
    """The title of a scene: HellaSwag's `activity_label`."""
    return f"Every {fact.attribute.name}" if fact.attribute.is_routine else f"About {fact.domain}"


def write_mmlu(folder: Path, test: dict[str, list[Item]], dev: dict[str, list[Item]]) -> None:
    """Write `test/<subject>_test.csv` and `dev/<subject>_dev.csv`: no header, question, A, B, C, D, letter."""
    for split, by_subject in (("test", test), ("dev", dev)):
        (folder / split).mkdir(parents=True)
        for subject, items in by_subject.items():
            with (folder / split / f"{subject}_{split}.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerows([item.context, *item.choices, _LETTERS[item.answer]] for item in items)


def write_hellaswag(path: Path, items: Iterable[Item]) -> None:
    """Write one JSON object a line with HellaSwag's fields: ind, activity_label, ctx, endings, label."""
    with path.open("w", encoding="utf-8") as file:
        for index, item in enumerate(items):
            row = {
                "ind": index,
                "activity_label": item.label,
                "ctx": item.context,
                "endings": list(item.choices),
                "label": item.answer,
            }
            file.write(json.dumps(row) + "\n")


def _values_in_use(facts: Sequence[Fact]) -> dict[str, list[str]]:
    """By attribute, the values that some subject has: a value that no text mentions would be no real choice."""
    used: dict[str, set[str]] = {}
    for fact in facts:
        used.setdefault(fact.attribute.name, set()).add(fact.value)
    return {name: sorted(values) for name, values in used.items()}


def _choices(fact: Fact, used: dict[str, list[str]], rng: random.Random) -> tuple[tuple[str, str, str, str], int]:
    known = used[fact.attribute.name]
    others = [value for value in (known if len(known) >= 4 else fact.attribute.values) if value != fact.value]
    values = [fact.value, *rng.sample(others, 3)]
    rng.shuffle(values)
    first, second, third, fourth = values
    return (first, second, third, fourth), values.index(fact.value)
