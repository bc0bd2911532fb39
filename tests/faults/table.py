"""The table of faults at the end of a run of tests: injected, survived, and the figures that the tests measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

_FAULT, _FIGURE = "fault", "figure"
_reports: dict[str, pytest.TestReport] = {}


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Say a figure for the table."""
    return lambda figure: request.node.user_properties.append((_FIGURE, figure))


def pytest_itemcollected(item: pytest.Item) -> None:
    mark = item.get_closest_marker("faults")
    if mark is not None:  # a property, so that reports of tests in other processes say it too
        item.user_properties.append((_FAULT, str(mark.args[0]) if mark.args else item.name))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if told(report, _FAULT) and (report.when == "call" or report.failed):
        _reports[report.nodeid] = report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _reports:
        return
    terminalreporter.section("faults")
    by_name: dict[str, list[pytest.TestReport]] = {}
    for report in _reports.values():
        by_name.setdefault(told(report, _FAULT)[0], []).append(report)
    for name, reports in by_name.items():
        figures = "; ".join(figure for report in reports for figure in told(report, _FIGURE))
        terminalreporter.write_line(
            f"{len(reports)} injected, {survivors(reports)} survived: {name}{f' ({figures})' if figures else ''}"
        )
    terminalreporter.write_line(f"all: {len(_reports)} injected, {survivors(_reports.values())} survived")


def told(report: pytest.TestReport, key: str) -> list[str]:
    return [str(value) for name, value in report.user_properties if name == key]


def survivors(reports: Iterable[pytest.TestReport]) -> int:
    return sum(report.passed for report in reports)
