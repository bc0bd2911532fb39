"""One Prefect server and one tiny world for all tests of flows, and the command line in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator

import prefect.main  # noqa: F401  its log handlers take stderr before a test captures it
import pytest
from prefect.testing.utilities import prefect_test_harness

from flows import cli
from tests.tiny_model import TinyWorld, make_tiny_world


@pytest.fixture(scope="session", autouse=True)
def prefect_server() -> Generator[None]:
    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    return make_tiny_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def rlhf(capsys, monkeypatch) -> Callable[..., tuple[int, str, str]]:
    """Call `rlhf …`; its exit code, stdout and stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rlhf", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return call
