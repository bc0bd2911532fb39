"""Where a deployment's run keeps its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_core.errors import ConfigError
from tasks.opening import _deployment_home


def test_an_absolute_home_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("RLHF_HOME", "/elsewhere")
    assert _deployment_home(tmp_path) == tmp_path


def test_a_relative_home_gives_way_to_the_workers(monkeypatch, tmp_path):
    monkeypatch.setenv("RLHF_HOME", str(tmp_path))
    assert _deployment_home(Path("runs")) == tmp_path


def test_a_relative_home_without_the_workers_is_refused(monkeypatch):
    monkeypatch.delenv("RLHF_HOME", raising=False)
    with pytest.raises(ConfigError, match=r"home='runs' is relative.*RLHF_HOME"):
        _deployment_home(Path("runs"))
