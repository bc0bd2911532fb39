"""What tests of the command line in its own processes share: one local Prefect server, as `rlhf` starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RLHF = [sys.executable, "-m", "flows.cli"]


@pytest.fixture(scope="session")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, str]]:
    """The environment in which `rlhf` has a local server and a Prefect home of its own; stopped at the end."""
    home = tmp_path_factory.mktemp("prefect")
    mine = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment = mine | {
        "PREFECT_HOME": str(home),
        "PREFECT_PROFILES_PATH": str(home / "profiles.toml"),
        "DO_NOT_TRACK": "1",
        "NO_COLOR": "1",
        "COLUMNS": "200",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    subprocess.run([*RLHF, "server", "start"], env=environment, cwd=ROOT, check=True, capture_output=True, timeout=200)
    yield environment
    subprocess.run([*RLHF, "server", "stop"], env=environment, cwd=ROOT, check=True, capture_output=True, timeout=60)
