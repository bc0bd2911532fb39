"""Lines that a kill cut short do no harm, and a line in the middle that is no JSON is not passed over."""

from __future__ import annotations

import pytest

from rlhf_core.data.json_lines import append_json_line, read_json_lines
from rlhf_core.errors import DataError


def test_a_line_that_a_kill_cut_short_is_left_out_but_a_broken_middle_is_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a": 2')
    assert read_json_lines(path) == [{"a": 1}]
    path.write_text('{"a": 1}\n{"a": \n{"a": 3}\n')
    with pytest.raises(DataError, match="line 2"):
        read_json_lines(path)


@pytest.mark.parametrize("left_by_a_kill", ["", '{"a": 1}\n', '{"a": 1}\n{"a": 2'])
def test_a_line_is_appended_after_the_last_whole_one(left_by_a_kill, tmp_path):
    path = tmp_path / "new" / "x.jsonl"
    path.parent.mkdir()
    path.write_text(left_by_a_kill)
    append_json_line(path, {"a": 3})
    assert read_json_lines(path) == [{"a": 1}] * left_by_a_kill.count("\n") + [{"a": 3}]


def test_a_file_that_is_not_there_has_no_lines_until_one_is_appended(tmp_path):
    path = tmp_path / "new" / "x.jsonl"
    assert read_json_lines(path) == []
    append_json_line(path, {"a": 1})
    assert path.read_text() == '{"a": 1}\n'
