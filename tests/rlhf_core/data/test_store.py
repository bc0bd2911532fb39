"""The run folder keeps whole files only, and says what is wrong when it cannot be written."""

from __future__ import annotations

import errno
import json
import os

import pandas as pd
import pyarrow as pa
import pytest

from rlhf_core.data import store
from rlhf_core.errors import DataError, RunFolderError

KEY = store.StageKey("test", {"in": "abc"}, {"x": 1})


def finish(folder, content="one"):
    with store.stage_folder(folder) as partial:
        (partial / "a.txt").write_text(content)
        store.finish_stage(partial, KEY, rows=3, metrics={"m": 1.0})


def test_a_finished_stage_serves_again_for_the_same_key_only(tmp_path):
    finish(tmp_path / "s")
    ref = store.finished_stage(tmp_path / "s", KEY)
    assert ref is not None and (ref.rows, ref.metrics) == (3, {"m": 1.0})
    for other in (
        store.StageKey("other", KEY.inputs, KEY.settings),
        store.StageKey("test", {"in": "abd"}, KEY.settings),
        store.StageKey("test", KEY.inputs, {"x": 2}),
    ):
        assert store.finished_stage(tmp_path / "s", other) is None


def test_a_stage_that_lost_bytes_does_not_serve_again(tmp_path):
    finish(tmp_path / "s")
    (tmp_path / "s" / "a.txt").write_text("on")
    assert store.finished_stage(tmp_path / "s", KEY) is None
    (tmp_path / "s" / "a.txt").unlink()
    assert store.finished_stage(tmp_path / "s", KEY) is None


def test_a_stage_that_fails_leaves_the_old_result_and_no_rubbish(tmp_path):
    finish(tmp_path / "s", "old")
    with pytest.raises(ZeroDivisionError), store.stage_folder(tmp_path / "s") as partial:
        (partial / "a.txt").write_text("new")
        raise ZeroDivisionError
    assert (tmp_path / "s" / "a.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_what_a_kill_left_behind_is_swept_by_the_next_try(tmp_path):
    (tmp_path / ".s.partial").mkdir()
    (tmp_path / ".s.partial" / "half").write_text("x")
    finish(tmp_path / "s")
    assert {path.name for path in tmp_path.iterdir()} == {"s"}
    assert {path.name for path in (tmp_path / "s").iterdir()} == {"a.txt", "MANIFEST.json"}


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    store.write_bytes(tmp_path / "f", b"old")

    def refuse(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(RunFolderError, match=r"disk is full.*resume"):
        store.write_bytes(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize(
    ("number", "words"), [(errno.EROFS, "read-only"), (errno.EACCES, "not permitted"), (errno.EDQUOT, "quota")]
)
def test_each_refusal_of_the_disk_says_what_to_do(tmp_path, number, words):
    with pytest.raises(RunFolderError, match=words), store.disk_errors(tmp_path):
        raise OSError(number, "refused")


def test_another_system_error_is_not_disguised(tmp_path):
    with pytest.raises(OSError, match="odd"), store.disk_errors(tmp_path):
        raise OSError(errno.EIO, "odd")


def test_a_table_keeps_lists_nulls_and_extra_columns(tmp_path):
    schema = pa.schema([("ids", pa.list_(pa.int32())), ("name", pa.string())])
    frame = pd.DataFrame({"name": ["a", None], "ids": [[1, 2], []], "extra": [0.5, 1.5]})
    store.write_table(tmp_path / "t.parquet", frame, schema)
    back = store.read_table(tmp_path / "t.parquet")
    assert (
        back["ids"].tolist() == [[1, 2], []]
        and back["name"].tolist() == ["a", None]
        and back["extra"].tolist() == [0.5, 1.5]
    )
    with pytest.raises(DataError, match=r"\['name'\] are missing"):
        store.write_table(tmp_path / "t.parquet", frame[["ids"]], schema)
    with pytest.raises(DataError, match="missing"):
        store.read_table(tmp_path / "none.parquet")


def test_a_table_without_rows_keeps_its_columns(tmp_path):
    schema = pa.schema([("ids", pa.list_(pa.int32())), ("name", pa.string())])
    store.write_table(tmp_path / "t.parquet", pd.DataFrame(columns=schema.names), schema)
    assert store.read_table(tmp_path / "t.parquet").columns.tolist() == ["ids", "name"]


def test_json_that_is_damaged_or_missing_is_named(tmp_path):
    with pytest.raises(DataError, match="missing"):
        store.read_json(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(DataError, match="not valid JSON"):
        store.read_json(tmp_path / "x.json")


def test_hashes_do_not_depend_on_the_order_of_keys():
    assert store.stable_hash({"a": 1, "b": 2}) == store.stable_hash(json.loads('{"b": 2, "a": 1}'))
