"""The table of faults at the end of a run of tests: injected, survived, and the figures that the tests measured."""

from __future__ import annotations

from collections.abc import Callable

import pytest

_measured: dict[str, list[str]] = {}
_outcomes: dict[str, str] = {}
_names: dict[str, str] = {}


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Say a figure for the table."""
    return _measured.setdefault(request.node.nodeid, []).append


def pytest_itemcollected(item: pytest.Item) -> None:
    mark = item.get_closest_marker("faults")
    if mark is not None:
        _names[item.nodeid] = str(mark.args[0]) if mark.args else item.name


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.nodeid in _names and (report.when == "call" or report.failed):
        _outcomes[report.nodeid] = "survived" if report.passed else report.outcome


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _outcomes:
        return
    terminalreporter.section("faults")
    for name in dict.fromkeys(_names[node] for node in _outcomes):
        nodes = [node for node in _outcomes if _names[node] == name]
        survived = sum(_outcomes[node] == "survived" for node in nodes)
        figures = "; ".join(figure for node in nodes for figure in _measured.get(node, []))
        terminalreporter.write_line(
            f"{len(nodes)} injected, {survived} survived: {name}{f' ({figures})' if figures else ''}"
        )
    survived = sum(outcome == "survived" for outcome in _outcomes.values())
    terminalreporter.write_line(f"all: {len(_outcomes)} injected, {survived} survived")
