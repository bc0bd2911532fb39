"""The files of the quickstart's world."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from rlhf_core.quickstart.world import World, WorldSettings, read_jsonl

SMALL = WorldSettings(6, 40, 40, 40, 20, 40, 20)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    World(WorldSettings(), 0).write(folder)
    return folder


def test_files_have_their_columns_and_row_counts(data):
    columns = {
        "sft": ({"prompt", "response", "domain"}, 7000),
        "ptx": ({"text"}, 7000),
        "prompts": ({"prompt", "domain"}, 600),
        "prompts_heldout": ({"prompt", "domain"}, 160),
        "preferences_train": ({"prompt", "chosen", "rejected", "domain"}, 1600),
        "preferences_eval": ({"prompt", "chosen", "rejected", "domain"}, 400),
    }
    for name, (expected, rows) in columns.items():
        found = read_jsonl(data / f"{name}.jsonl")
        assert len(found) == rows
        assert all(set(row) == expected and all(row.values()) for row in found)


def test_held_out_prompts_are_never_trained_on(data):
    trained = {
        row["prompt"] for name in ("sft", "prompts", "preferences_train") for row in read_jsonl(data / f"{name}.jsonl")
    }
    held_out = {
        row["prompt"] for name in ("prompts_heldout", "preferences_eval") for row in read_jsonl(data / f"{name}.jsonl")
    }
    assert not trained & held_out
    assert len({row["domain"] for row in read_jsonl(data / "prompts_heldout.jsonl")}) == 4


def test_a_seed_decides_every_byte_and_another_seed_another_world(tmp_path):
    for name, seed in (("first", 0), ("same", 0), ("other", 1)):
        (tmp_path / name).mkdir()
        World(SMALL, seed).write(tmp_path / name)
    first = tmp_path / "first"
    files = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert len(files) == 15
    assert all((first / file).read_bytes() == (tmp_path / "same" / file).read_bytes() for file in files)
    assert all((first / file).read_bytes() != (tmp_path / "other" / file).read_bytes() for file in files)


def test_preferences_follow_quality_with_noise_and_are_not_a_matter_of_length(data):
    world = World(WorldSettings(), 0)
    rows = read_jsonl(data / "preferences_train.jsonl")
    better = [world.score(row["prompt"], row["chosen"]) > world.score(row["prompt"], row["rejected"]) for row in rows]
    assert 0.85 < sum(better) / len(rows) < 1.0
    longer = [len(row["chosen"].split()) > len(row["rejected"].split()) for row in rows]
    assert sum(longer) / len(rows) < 0.7


def test_a_linear_bradley_terry_model_on_word_counts_predicts_held_out_preferences(data):
    rows = {split: read_jsonl(data / f"preferences_{split}.jsonl") for split in ("train", "eval")}
    counts = CountVectorizer(ngram_range=(1, 2)).fit([row["chosen"] + " " + row["rejected"] for row in rows["train"]])

    def differences(split):
        sides = [counts.transform([row[side] for row in rows[split]]) for side in ("chosen", "rejected")]
        return (sides[0] - sides[1]).toarray().astype(float)

    train = differences("train")
    signs = np.where(np.arange(len(train)) % 2, 1.0, -1.0)
    model = LogisticRegression(C=0.3, fit_intercept=False, max_iter=500).fit(train * signs[:, None], signs)
    accuracy = (model.decision_function(differences("eval")) > 0).mean()
    assert 0.7 < accuracy < 0.97
