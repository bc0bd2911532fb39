from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from rlhf_core.config.data import SourceConfig
from rlhf_core.data.sources import load_rows, source_fingerprint
from rlhf_core.errors import DataError


def load(root: Path, required: list[str] | None = None, **settings: object) -> pd.DataFrame:
    return load_rows(SourceConfig.model_validate(settings), root, required=required or ["prompt"])


def test_columns_are_renamed_and_the_limit_cuts_from_the_start(tmp_path, write_lines):
    write_lines("a.jsonl", [{"q": f"question {n}", "kind": "k"} for n in range(5)])
    frame = load(tmp_path, path="a.jsonl", columns={"prompt": "q", "domain": "kind"}, limit=2)
    assert frame.to_dict("list") == {
        "prompt": ["question 0", "question 1"],
        "domain": ["k", "k"],
        "origin": ["a.jsonl, line 1", "a.jsonl, line 2"],
    }


def test_a_template_joins_columns_and_an_empty_one_leaves_no_space(tmp_path, write_lines):
    write_lines("a.jsonl", [{"instruction": "Add.", "input": "1 {2}"}, {"instruction": "Sing.", "input": ""}])
    frame = load(tmp_path, path="a.jsonl", columns={"prompt": "{instruction}\n{input}"})
    assert frame["prompt"].tolist() == ["Add.\n1 {2}", "Sing."]


def test_the_domain_is_the_sources_then_the_rows_then_general(tmp_path, write_lines):
    write_lines("a.jsonl", [{"prompt": "a", "domain": "own"}, {"prompt": "b"}, {"prompt": "c", "domain": None}])
    assert load(tmp_path, path="a.jsonl")["domain"].tolist() == ["own", "general", "general"]
    assert load(tmp_path, path="a.jsonl", domain="set")["domain"].tolist() == ["set"] * 3


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "a"}, r"a.jsonl, line 2: there is no column 'prompt'; it has \['question'\]"),
        ({"prompt": 3}, "a.jsonl, line 2, column 'prompt': expected text, found int '3'"),
        ({"prompt": None}, "a.jsonl, line 2, column 'prompt': expected text, found null"),
    ],
)
def test_a_wrong_row_is_named_with_file_line_and_column(tmp_path, write_lines, row, message):
    write_lines("a.jsonl", [{"prompt": "fine"}, row])
    with pytest.raises(DataError, match=message):
        load(tmp_path, path="a.jsonl")


def test_a_domain_column_that_was_asked_for_must_be_there(tmp_path, write_lines):
    write_lines("a.jsonl", [{"prompt": "a"}])
    with pytest.raises(DataError, match="no column 'kind'"):
        load(tmp_path, path="a.jsonl", columns={"domain": "kind"})


def test_an_empty_file_is_refused(tmp_path, write_lines):
    path = write_lines("a.jsonl", [])
    with pytest.raises(DataError, match="has no rows") as caught:
        load(tmp_path, path="a.jsonl")
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("limit", [None, 2])
def test_a_hub_data_set_is_read_whole_or_streamed(tmp_path, write_lines, monkeypatch, limit):
    """A folder named as a hub data set stands in for one: the datasets library reads it by the same call."""
    (tmp_path / "owner/name").mkdir(parents=True)
    write_lines("owner/name/train.jsonl", [{"prompt": f"q{n}"} for n in range(3)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    frame = load(tmp_path, path="hub:owner/name", limit=limit)
    assert frame["prompt"].tolist() == [f"q{n}" for n in range(limit or 3)]
    assert frame["origin"][0] == "hub:owner/name, train row 1"
    with pytest.raises(DataError, match=r"split nope\) cannot be loaded"):
        load(tmp_path, path="hub:owner/name", split="nope", limit=limit)


def test_an_unknown_or_unreachable_hub_name_is_one_clear_error(tmp_path):
    with pytest.raises(DataError, match=r"hub:no-such-owner/no-such-set .*cannot be loaded.*HF_HUB_OFFLINE"):
        load(tmp_path, path="hub:no-such-owner/no-such-set")


def test_a_fingerprint_follows_the_files_content(tmp_path, write_lines):
    source = SourceConfig(path="a.jsonl")
    write_lines("a.jsonl", [{"prompt": "a"}])
    first = source_fingerprint(source, tmp_path)
    assert source_fingerprint(source, tmp_path) == first
    write_lines("a.jsonl", [{"prompt": "b"}])
    assert source_fingerprint(source, tmp_path) != first
    assert source_fingerprint(SourceConfig(path="hub:a/b", split="test"), tmp_path) == "hub:a/b/None/test"
