"""A run that is open in this process, without any model."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlhf_core.config.run import RunConfig
from rlhf_core.runtime import Runtime, close_runtime, open_runtime, prepare_run
from tasks.run import Run
from tests.tiny_model import make_tiny_model


@contextmanager
def open_run(home: Path, **sections: Any) -> Generator[tuple[Run, Runtime]]:
    """A new run that scores by a callable."""
    config = RunConfig.model_validate(
        {
            "name": "open",
            "home": home,
            "data": {"prompts": [{"path": "prompts.jsonl"}]},
            "model": {"policy": str(make_tiny_model(home / "model"))},
            "compute": {"device": "cpu"},
            "reward": {"scorer": "callable", "callable": {"path": "tests.flows.tiny_run:prefer_short"}},
            "ppo": {"ptx": {"enabled": False}},
        }
        | sections
    )
    folder = prepare_run(config, resume=False)
    try:
        yield Run.of(config, folder.path), open_runtime(folder.path)
    finally:
        close_runtime(folder.path)
