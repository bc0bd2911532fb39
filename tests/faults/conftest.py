"""What the fault matrix shares: a world, and the numbers of a run that nothing disturbed."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from prefect.testing.utilities import prefect_test_harness

from examples.without_prefect import run as run_without_prefect
from tests.e2e.conftest import own_server  # noqa: F401  a fixture
from tests.faults.injection import Undisturbed, ray_settings
from tests.flows.tiny_run import write_config
from tests.tiny_model import TinyWorld, make_tiny_world


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
