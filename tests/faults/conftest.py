"""What the fault matrix shares: a world, the numbers of a run that nothing disturbed, and the table at the end."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest
from prefect.testing.utilities import prefect_test_harness

from examples.without_prefect import run as run_without_prefect
from tests.e2e.conftest import own_server  # noqa: F401  a fixture
from tests.faults.injection import Undisturbed, ray_settings
from tests.flows.tiny_run import write_config
from tests.tiny_model import TinyWorld, make_tiny_world

_measured: dict[str, list[str]] = {}
_outcomes: dict[str, str] = {}
_names: dict[str, str] = {}


@pytest.fixture(scope="session")
def prefect_server() -> Generator[None]:
    """For flows of this process."""
    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    return make_tiny_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def undisturbed(world: TinyWorld, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """A run by two ranks to which nothing happened."""
    home = tmp_path_factory.mktemp("undisturbed")
    run_without_prefect(str(write_config(home, ray_settings(world, home))), [])
    return Undisturbed(world, home / "tiny")


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
