from __future__ import annotations

import pytest

from rlhf_core.data.preferences import load_preferences
from rlhf_core.data.transcripts import opening
from rlhf_core.errors import DataError


def pair(prompt: str, chosen: str = "good", rejected: str = "bad") -> dict[str, str]:
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def test_a_transcript_is_cut_before_its_last_turn_and_malformed_ones_are_reported(make_config, write_lines):
    head = "\n\nHuman: hi\n\nAssistant: hello\n\nHuman: bye"
    write_lines(
        "hh.jsonl",
        [
            {"chosen": f"{head}\n\nAssistant: good", "rejected": f"{head}\n\nAssistant: bad"},
            {"chosen": f"{head}\n\nAssistant: good", "rejected": "\n\nHuman: x\n\nAssistant: bad"},
            {"chosen": "no dialogue", "rejected": "none"},
        ],
    )
    write_lines("eval.jsonl", [pair("other")])
    hh = {"path": "hh.jsonl", "layout": "hh_transcript", "domain": "helpful"}
    config = make_config({"preferences": {"train": [hh], "held_out": [{"path": "eval.jsonl"}]}})
    pairs = load_preferences(config.data)
    row = pairs.train.iloc[0]
    assert (row["prompt"], row["chosen"], row["rejected"]) == (head.strip(), "good", "bad")
    assert (row["domain"], row["origin"], len(pairs.train)) == ("helpful", "hh.jsonl, line 1", 1)
    assert pairs.left_out["origin"].tolist() == ["hh.jsonl, line 2", "hh.jsonl, line 3"]
    assert pairs.left_out["detail"][0] == "chosen and rejected differ before the last turn"


def test_identical_empty_and_repeated_pairs_are_dropped_and_counted(make_config, write_lines):
    write_lines("train.jsonl", [pair("a"), pair("b", "x", " x"), pair("c", ""), pair("a")])
    write_lines("eval.jsonl", [pair("d")])
    config = make_config({"preferences": {"train": [{"path": "train.jsonl"}], "held_out": [{"path": "eval.jsonl"}]}})
    pairs = load_preferences(config.data)
    assert pairs.train["prompt"].tolist() == ["a"]
    assert pairs.left_out["reason"].tolist() == ["identical", "empty", "duplicate"]


def test_a_training_dialogue_whose_opening_is_judged_as_well_leaves_the_training_set(make_config, write_lines):
    write_lines("train.jsonl", [pair("Human: A  b\n\nAssistant: c\n\nHuman: d"), pair("e")])
    write_lines("eval.jsonl", [pair("a B")])
    config = make_config({"preferences": {"train": [{"path": "train.jsonl"}], "held_out": [{"path": "eval.jsonl"}]}})
    pairs = load_preferences(config.data)
    assert pairs.train["prompt"].tolist() == ["e"]
    assert pairs.held_out["prompt"].tolist() == ["a B"]
    assert pairs.left_out["reason"].tolist() == ["held_out"]


def test_the_held_out_part_is_chosen_by_opening_and_does_not_depend_on_the_other_rows(make_config, write_lines):
    rows = [pair(f"Human: q{n // 2}\n\nAssistant: a\n\nHuman: {n}") for n in range(800)]
    config = make_config({"preferences": {"train": [{"path": "train.jsonl"}], "held_out_fraction": 0.25}})
    write_lines("train.jsonl", rows)
    whole = load_preferences(config.data)
    assert len(whole.held_out) + len(whole.train) == 800
    assert len(whole.held_out) / 800 == pytest.approx(0.25, abs=0.06)
    assert not set(whole.held_out["prompt"].map(opening)) & set(whole.train["prompt"].map(opening))
    write_lines("train.jsonl", rows[400:])
    assert set(load_preferences(config.data).held_out["prompt"]) <= set(whole.held_out["prompt"])


def test_pairs_of_which_nothing_is_left_are_refused_with_the_counts(make_config, write_lines):
    write_lines("train.jsonl", [pair("a", "x", "x")])
    config = make_config({"preferences": {"train": [{"path": "train.jsonl"}]}})
    with pytest.raises(DataError, match=r"data.preferences.train: no usable pair is left \(1 identical\)"):
        load_preferences(config.data)


def test_no_source_gives_no_pairs(make_config):
    pairs = load_preferences(make_config({}).data)
    assert pairs.train.empty and pairs.held_out.empty and pairs.left_out.empty
