"""Items from local files: prompts, subsets, and refusals."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.config.evaluation import BenchmarkConfig
from rlhf_core.errors import DataError
from rlhf_core.evaluation.local_tasks import load_hellaswag, load_mmlu, stratified_subset, write_local_task

ROW = "What is 1+1?,1,2,3,4,B\n"
ENDINGS = ["He eats.", "It flies."]
SCENE = {"ind": 7, "activity_label": "Cooking", "ctx": "A man cuts  bread.", "endings": ENDINGS, "label": 0}


def mmlu(folder: Path, test: str = ROW, dev: str = "") -> Path:
    for split, text in (("test", test), ("dev", dev)):
        (folder / split).mkdir(parents=True, exist_ok=True)
        if text:
            (folder / split / f"high_school_maths_{split}.csv").write_text(text)
    return folder


def test_mmlu_prompt_is_the_harness_one(tmp_path):
    (item,) = load_mmlu(mmlu(tmp_path), 0)
    assert item.prompt == (
        "The following are multiple choice questions (with answers) about high school maths.\n\n"
        "What is 1+1?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:"
    )
    assert (item.choices, item.answer, item.stratum) == (("A", "B", "C", "D"), 1, "high_school_maths")
    assert item.item_id == "high_school_maths/1"


def test_mmlu_examples_come_before_the_question_with_their_letter(tmp_path):
    (item,) = load_mmlu(mmlu(tmp_path, dev="Two?,2,0,0,0,A\nThree?,0,3,0,0,B\n"), 1)
    example = "Two?\nA. 2\nB. 0\nC. 0\nD. 0\nAnswer: A\n\n"
    assert item.prompt.endswith(f"maths.\n\n{example}What is 1+1?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:")
    assert "Three?" not in item.prompt


def test_mmlu_by_text_scores_the_options_themselves_and_lists_none(tmp_path):
    (item,) = load_mmlu(mmlu(tmp_path, dev="Two?,2,0,0,0,A\n"), 1, by_text=True)
    assert item.prompt == (
        "The following are questions (with answers) about high school maths.\n\n"
        "Question: Two?\nAnswer: 2\n\nQuestion: What is 1+1?\nAnswer:"
    )
    assert (item.choices, item.answer) == (("1", "2", "3", "4"), 1)


@pytest.mark.parametrize(
    ("test", "dev", "fewshot", "words"),
    [
        ("question,A,B,C,D,answer\n", "", 0, r"maths_test.csv, row 1: expected question"),
        (ROW + "Why?,1,2,3,B\n", "", 0, "row 2: expected .* found 5 fields"),
        ("Why?,1,2,3,4,AB\n", "", 0, "row 1"),
        (ROW, "", 1, "maths_dev.csv is missing"),
        (ROW, ROW, 2, "has 1 examples, fewer than fewshot=2"),
        ("", "", 0, r"has no test/\*.csv"),
    ],
)
def test_malformed_mmlu_is_refused_with_its_place(tmp_path, test, dev, fewshot, words):
    with pytest.raises(DataError, match=words):
        load_mmlu(mmlu(tmp_path, test, dev), fewshot)


def test_an_empty_mmlu_file_is_refused(tmp_path):
    folder = mmlu(tmp_path)
    (folder / "test" / "law_test.csv").write_text("")
    with pytest.raises(DataError, match=r"law_test\.csv is empty"):
        load_mmlu(folder, 0)


def test_hellaswag_prompt_and_endings_are_cleaned_as_the_harness_does(tmp_path):
    path = tmp_path / "items.jsonl"
    first = SCENE | {"ctx": "A man cuts  bread [title] Then he [x]stops.", "endings": ["He [step] eats.", "It flies."]}
    second = {"activity_label": "Ski", "ctx_a": "Snow falls.", "ctx_b": "a skier", "endings": ENDINGS, "label": "1"}
    path.write_text(json.dumps(first) + "\n" + json.dumps(second) + "\n")
    one, two = load_hellaswag(path, 0)
    assert one.prompt == "Cooking: A man cuts bread. Then he stops."
    assert one.choices == ("He eats.", "It flies.") and one.answer == 0 and one.item_id == "7"
    assert (two.prompt, two.answer, two.stratum) == ("Ski: Snow falls. A skier", 1, "Ski")


def test_hellaswag_examples_are_taken_out_of_the_items(tmp_path):
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps(SCENE) + "\n" + json.dumps(SCENE | {"ind": 8}) + "\n")
    (item,) = load_hellaswag(path, 1)
    assert item.item_id == "8"
    assert item.prompt == "Cooking: A man cuts bread. He eats.\n\nCooking: A man cuts bread."


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: expected JSON"),
        (json.dumps({"ctx": "x"}), "line 2: expected JSON with activity_label.*KeyError"),
        (json.dumps(SCENE | {"label": 2}), "line 2: label 2 names none of its 2 endings"),
        (json.dumps(SCENE | {"label": ""}), "line 2: expected JSON"),
        (json.dumps(SCENE | {"endings": ["one"], "label": 0}), "line 2: label 0"),
        (json.dumps(SCENE | {"endings": ["one", " "], "label": 0}), "ending is empty"),
    ],
)
def test_malformed_hellaswag_is_refused_with_its_line(tmp_path, line, words):
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps(SCENE) + "\n" + line + "\n")
    with pytest.raises(DataError, match=words):
        load_hellaswag(path, 0)


def test_a_missing_or_too_short_hellaswag_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"none\.jsonl is missing"):
        load_hellaswag(tmp_path / "none.jsonl", 0)
    (tmp_path / "one.jsonl").write_text(json.dumps(SCENE) + "\n")
    with pytest.raises(DataError, match="needs more than fewshot=1"):
        load_hellaswag(tmp_path / "one.jsonl", 1)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=60), st.integers(1, 70), st.integers(0, 5))
def test_a_subset_keeps_each_stratums_share_to_one_item(strata, items, seed):
    chosen = stratified_subset(strata, items, seed)
    assert len(chosen) == min(items, len(strata)) and chosen == sorted(set(chosen))
    whole, part = Counter(strata), Counter(strata[index] for index in chosen)
    for name, count in whole.items():
        assert abs(part[name] - len(chosen) * count / len(strata)) < 1
    assert chosen == stratified_subset(strata, items, seed)


def test_a_subset_follows_its_seed():
    strata = ["a"] * 50
    assert stratified_subset(strata, 10, 1) != stratified_subset(strata, 10, 2)
    assert stratified_subset(strata, None, 1) == list(range(50))


def test_the_same_items_are_stored_each_time(tmp_path):
    mmlu(tmp_path / "data", "".join(f"{n}+1?,1,2,3,4,B\n" for n in range(30)))
    config = BenchmarkConfig(name="sums", format="mmlu_csv", path="data", items=10)
    counts = [write_local_task(config, tmp_path, tmp_path / name, tmp_path, 3) for name in ("one", "two")]
    one, two = ((tmp_path / name / "sums.jsonl").read_text() for name in ("one", "two"))
    assert counts == [10, 10] and one == two and len(one.splitlines()) == 10
