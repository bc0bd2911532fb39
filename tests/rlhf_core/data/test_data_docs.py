from __future__ import annotations

import re

from rlhf_core.data.data_docs import write_data_docs
from rlhf_core.data.expectations import CheckResult, TableCheck
from rlhf_core.data.json_lines import read_json_lines


def check(*failed_rows: int) -> TableCheck:
    item = CheckResult("text is short", "prompt", not failed_rows, failed_rows, ("<b>long</b>",) if failed_rows else ())
    return TableCheck("prompts", 4, (item,))


def test_a_page_shows_what_failed_and_needs_nothing_from_elsewhere(tmp_path):
    page = write_data_docs(tmp_path, "one", "First & only", [check(1, 2)]).read_text()
    assert "text is short" in page and "2 of 4 rows fail" in page
    assert "&lt;b&gt;long&lt;/b&gt;" in page and "First &amp; only" in page
    index = (tmp_path / "index.html").read_text()
    assert 'href="one.html"' in index
    for text in (page, index):
        assert not re.search(r"https?://|<script|<link|/home|/tmp", text)


def test_writing_a_page_again_replaces_it_in_the_index(tmp_path):
    for name, rows in (("one", (1,)), ("two", ()), ("one", ()), ("one", ())):
        write_data_docs(tmp_path, name, name, [check(*rows)])
    index = (tmp_path / "index.html").read_text()
    assert (index.count('href="one.html"'), index.count('href="two.html"'), index.count("✗ fails")) == (1, 1, 0)
    assert [row["failed_rows"] for row in read_json_lines(tmp_path / "results.jsonl")] == [1, 0, 0]
