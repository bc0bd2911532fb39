"""One Prefect server and one tiny world for all tests of flows."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from prefect.testing.utilities import prefect_test_harness

from tests.tiny_model import TinyWorld, make_tiny_world


@pytest.fixture(scope="session", autouse=True)
def prefect_server() -> Generator[None]:
    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    return make_tiny_world(tmp_path_factory.mktemp("world"))
