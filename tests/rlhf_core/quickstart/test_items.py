"""Items in MMLU's and HellaSwag's formats."""

from __future__ import annotations

import csv
import json
from collections import Counter

from rlhf_core.quickstart.facts import DOMAINS
from rlhf_core.quickstart.world import World, WorldSettings


def test_files_hold_right_answers_in_the_formats_of_mmlu_and_hellaswag(tmp_path):
    world = World(WorldSettings(), 0)
    world.write(tmp_path)
    questions, letters, dev_texts = 0, Counter(), set()
    for domain in DOMAINS:
        dev = list(csv.reader((tmp_path / f"mmlu/dev/{domain}_dev.csv").open(newline="")))
        test = list(csv.reader((tmp_path / f"mmlu/test/{domain}_test.csv").open(newline="")))
        assert len(dev) == 5
        dev_texts |= {row[0] for row in dev}
        for question, *choices, letter in dev + test:
            fact = world.questions[question].fact
            assert fact is not None and fact.domain == domain
            assert len(choices) == 4 == len(set(choices)) and set(choices) <= set(fact.attribute.values)
            assert choices["ABCD".index(letter)] == fact.value
            letters[letter] += 1
        questions += len(test)
        assert not dev_texts & {row[0] for row in test}
    assert questions >= 200
    assert min(letters.values()) > 0.15 * sum(letters.values())

    rows = [json.loads(line) for line in (tmp_path / "hellaswag.jsonl").read_text().splitlines()]
    assert len(rows) == len(world.facts) >= 200
    for index, (row, fact) in enumerate(zip(rows, world.facts, strict=True)):
        assert set(row) == {"ind", "activity_label", "ctx", "endings", "label"} and row["ind"] == index
        assert len(set(row["endings"])) == 4
        assert row["endings"][row["label"]] == fact.attribute.ending.format(v=fact.value)
        assert fact.subject in row["ctx"]
