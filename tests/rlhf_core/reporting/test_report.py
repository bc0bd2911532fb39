"""The report: for a run in any state, from its folder alone, with nothing that a model wrote taken as HTML."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rlhf_core.data.events import record_event
from rlhf_core.data.filter_timing import record_filter_timing
from rlhf_core.data.store import RunFolder
from rlhf_core.errors import DataError, OutOfMemory
from rlhf_core.recovery.ledger import end_attempt, fail_attempt, read_attempts, start_attempt
from rlhf_core.reporting.acceptance_section import acceptance_table
from rlhf_core.reporting.report import write_report
from rlhf_core.reporting.sources import load_run
from tests.rlhf_core.reporting.run_folder import HOSTILE, make_run, write_gate


class Page(HTMLParser):
    """Tags, their attributes and the visible text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        inside = self.tags[-1][0] if self.tags else ""
        (self.scripts if inside == "script" else self.words).append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))

    @property
    def ids(self) -> set[str | None]:
        return {attributes.get("id") for _, attributes in self.tags}


def page_of(folder: RunFolder) -> Page:
    return Page(write_report(folder).read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_run(tmp_path_factory.mktemp("runs") / "finished", rounds=2, per_round=2)


@pytest.fixture(scope="module")
def page(finished: RunFolder) -> Page:
    return page_of(finished)


def test_a_finished_run_shows_every_part(page: Page):
    assert "Finished: 4 of 4 iterations, 2 gates." in page.text
    for part in ("control", "held_out", "density", "ability", "training-endings", "training-0", "training-12"):
        assert f"figure-{part}" in page.ids
    for words in (
        "mmlu, 500 items",
        "TF-IDF with length",
        "preference pairs held out",
        "Time by stage",
        "Best",
        "Worst",
        "best promoted policy (Hugging Face folder)best",
    ):
        assert words in page.text


def test_what_models_and_data_wrote_is_text_never_html(page: Page):
    assert HOSTILE in "".join(page.words)
    assert not [
        tag for tag, attributes in page.tags if tag == "img" or any(name.startswith("on") for name in attributes)
    ]
    assert not [script for script in page.scripts if "document.title" in script]


def test_the_page_needs_no_network_and_stays_small(page: Page, finished: RunFolder):
    links = [attributes.get(name) or "" for _, attributes in page.tags for name in ("src", "href")]
    assert not [link for link in links if "//" in link]
    assert finished.report.stat().st_size < 6_000_000


def test_every_anchor_of_the_menu_leads_somewhere(page: Page):
    anchors = {(attributes.get("href") or "")[1:] for tag, attributes in page.tags if tag == "a"} - {""}
    assert {anchor for anchor in anchors if "/" not in anchor} <= page.ids


def test_the_data_docs_are_linked_relative_to_the_report(page: Page):
    links = [attributes.get("href") for tag, attributes in page.tags if tag == "a"]
    assert "validation/data_docs/index.html" in links


def test_an_unfinished_run_says_so_and_how_to_go_on(tmp_path: Path):
    page = page_of(make_run(tmp_path / "half", rounds=2, per_round=2, done=1))
    assert "Unfinished: 1 of 4 iterations are recorded." in page.text
    assert f"rlhf resume {tmp_path / 'half'}" in page.text
    assert "No gate has been reached yet." in page.text


def test_a_failed_run_says_at_the_top_what_ended_it(tmp_path: Path):
    folder = make_run(tmp_path / "broken", rounds=2, per_round=2, done=0)
    record_event(folder, "failure", "memory ran out in the update", iteration=2)
    text = page_of(folder).text
    assert "Failed after 0 of 4 iterations: memory ran out in the update" in text[: text.index("Reward and KL")]


def test_a_run_that_its_gate_stopped_says_so(tmp_path: Path):
    folder = make_run(tmp_path / "stopped", rounds=2, per_round=1, done=0)
    write_gate(folder, 1, 1, kind="stop")
    assert "Stopped by its gate after 0 of 2 iterations." in page_of(folder).text


def test_an_empty_folder_gives_a_page_too(tmp_path: Path):
    page = page_of(RunFolder(tmp_path))
    assert "Nothing has run yet." in page.text
    assert not [script for script in page.scripts if script.strip()]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", "name: [unclosed"),
        ("config.yaml", "unknown_key: 1"),
        ("baseline/evaluation.json", '{"step": "no"}'),
        ("reward_model/validation.json", '{"accuracy": 0.6}'),
        ("rounds/001/decision.json", "{}"),
        ("checkpoints/REGISTRY.json", '{"best": "x"}'),
        ("manifest.json", "[]"),
    ],
)
def test_a_malformed_part_is_named_not_skipped(finished: RunFolder, tmp_path: Path, name: str, content: str):
    folder = RunFolder(shutil.copytree(finished.path, tmp_path / "run"))
    (folder.path / name).write_text(content)
    with pytest.raises(DataError, match=re.escape(name)):
        write_report(folder)


def test_a_folder_that_is_absent_is_an_error(tmp_path: Path):
    with pytest.raises(DataError, match="does not exist"):
        write_report(RunFolder(tmp_path / "nowhere"))


def test_attempts_that_failed_are_shown_with_what_was_changed(tmp_path: Path):
    folder = make_run(tmp_path / "run", rounds=1, per_round=1)
    title = "Attempts that failed, were lost, or tried again"
    assert title not in page_of(folder).text
    plan = {"step": 2, "changes": {}, "words": "retry step 2: micro-batches of 2"}
    end_attempt(folder, start_attempt(folder, (), stage="scores", iteration=1, epoch=1, plan={}), "ok")
    for number, row in enumerate(({}, plan), start=2):
        earlier = read_attempts(folder)
        attempt = start_attempt(folder, earlier, stage="update", iteration=1, epoch=1, plan=row)
        assert attempt.attempt == number
        fail_attempt(folder, attempt, OutOfMemory(HOSTILE), gave_up=False)
    page = page_of(folder)
    assert title in page.text and "out of memory" in page.text and "retry step 2: micro-batches of 2" in page.text
    table = page.text[page.text.index(title) :]
    assert "the run's own settings" in table and "scores" not in table[: table.index("Reward model")]
    assert not [tag for tag, attributes in page.tags if "onerror" in attributes]


def test_acceptance_is_shown_by_filter_with_its_cost_and_by_domain(tmp_path: Path):
    folder = make_run(tmp_path / "half", rounds=2, per_round=2, done=2)
    record_filter_timing(folder, 1, {"banned": 10}, {"banned": 0.02})
    record_filter_timing(folder, 2, {"banned": 10, "unsafe": 0}, {"banned": 0.04, "unsafe": 0.0})
    found = acceptance_table(load_run(folder))
    assert found is not None
    last = 0.9 - 0.1 * load_run(folder).iteration
    assert [row[0].text for row in found.rows] == [
        "all responses",
        "filter: banned",
        "domain: trivia",
    ]
    assert [found.rows[1][i].text for i in (2, 3)] == [f"{last:.1%}", "3.000"]
    assert [cell.text for cell in found.rows[2][1:]] == ["50.0%", "50.0%", ""]
    assert "filter: banned" in page_of(folder).text
    assert acceptance_table(load_run(make_run(tmp_path / "new", rounds=1, per_round=1, done=0))) is None
