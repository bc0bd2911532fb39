"""Settings that every test shares."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

from tests.faults.table import (  # noqa: F401  pytest finds hooks and fixtures by their names here
    measured,
    pytest_itemcollected,
    pytest_runtest_logreport,
    pytest_terminal_summary,
)

os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# No time limits: a loaded machine is not a failure. Derandomised: the same commit gives the same verdict.
settings.register_profile(
    "project", deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("project")
