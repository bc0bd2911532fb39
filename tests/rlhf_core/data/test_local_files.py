from __future__ import annotations

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest

from rlhf_core.data.local_files import file_rows, source_files
from rlhf_core.errors import DataError


def rows_of(path: Path, file_format: str = "auto", separator: str = "\n\n") -> list[tuple[str, dict]]:
    return [(place.removeprefix(f"{path}, "), dict(row)) for place, row in file_rows(path, file_format, separator)]


def test_every_format_gives_the_same_rows(tmp_path: Path):
    rows = [{"prompt": 'a, "b"\nc', "domain": "x"}, {"prompt": "ü", "domain": "y"}]
    frame = pd.DataFrame(rows)
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    (tmp_path / "a.json").write_text(json.dumps(rows), encoding="utf-8")
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    with gzip.open(tmp_path / "b.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(json.dumps(row) for row in rows))
    for path in sorted(tmp_path.iterdir()):
        assert [row for _, row in rows_of(path)] == rows, path.name


def test_documents_of_a_text_file_are_cut_at_the_separator_and_know_their_first_line(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\r\nstill one\r\n\r\n\r\n\r\ntwo\n\n\n\n\n\nthree\n")
    assert rows_of(path, separator="\n\n\n") == [
        ("line 1", {"text": "one\nstill one"}),
        ("line 6", {"text": "two"}),
        ("line 12", {"text": "three"}),
    ]
    assert path.read_bytes().replace(b"\r\n", b"\n").split(b"\n")[11] == b"three"


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfprompt\nhello\n")
    assert rows_of(path) == [("line 2", {"prompt": "hello"})]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"a": "b"}\n\n{"a": \n', "line 3 is not valid JSON"),
        ("a.jsonl", b'{"a": "b"}\n{"a": "\xe4"}\n', r"line 2 is not UTF-8 \(byte 0xe4 at column 8\)"),
        ("a.jsonl", b'["a"]\n', "line 1 holds a JSON list; expected an object"),
        ("a.json", b'[\n{"a": "b"},\n{"a" "b"}]', "line 3 is not valid JSON"),
        ("a.json", b'{"a": "b"}', "holds a JSON dict; expected a list"),
        ("a.csv", b'a,b\n"1\n1",2\n3\n', "line 4 has 1 fields; the header names 2"),
        ("a.csv", b'a,b\n"1,2\n', "is not valid CSV"),
        ("a.parquet", b"PAR1", "is not a readable Parquet file"),
        ("a.jsonl.gz", b"plain", "cannot be read"),
        ("a.dat", b"", "the ending does not tell the format"),
    ],
)
def test_a_malformed_file_is_named_with_the_line(tmp_path: Path, name: str, content: bytes, message: str):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        rows_of(path)
    assert str(path) in str(caught.value)


def test_a_folder_gives_its_data_files_in_order_and_nothing_else(tmp_path: Path):
    for name in ("b.jsonl", "a.csv", "README.md", ".hidden.jsonl", "sub/c.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert source_files(".", tmp_path, "auto") == [tmp_path / name for name in ("a.csv", "b.jsonl", "sub/c.jsonl")]
    assert source_files(".", tmp_path, "jsonl") == [tmp_path / name for name in ("b.jsonl", "sub/c.jsonl")]
    with pytest.raises(DataError, match="without files of format parquet"):
        source_files(".", tmp_path, "parquet")


def test_a_missing_file_is_named_with_its_absolute_path_and_the_root():
    with pytest.raises(DataError) as caught:
        source_files("nope.jsonl", Path("some/root"), "auto")
    assert str(Path("some/root/nope.jsonl").absolute()) in str(caught.value)
    assert "data.root is 'some/root'" in str(caught.value)
