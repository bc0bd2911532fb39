"""Settings that name the quickstart's world instead of files: `quickstart:data` and `quickstart:model`."""

from __future__ import annotations

import os
from pathlib import Path

from rlhf_core.config.run import RunConfig
from rlhf_core.quickstart.cache import ensure_quickstart_world

DATA = "quickstart:data"
MODEL = "quickstart:model"


def needs_quickstart_world(config: RunConfig) -> bool:
    """Whether a setting names the quickstart's world."""
    return str(config.data.root) == DATA or config.model.policy == MODEL


def cache_folder() -> Path:
    """Where worlds are kept: `RLHF_CACHE`, or a folder in the user's cache."""
    return Path(os.environ.get("RLHF_CACHE", Path.home() / ".cache" / "rlhf-pipeline"))


def resolve(config: RunConfig) -> RunConfig:
    """Make the world (cached in `cache_folder()`) and put its paths where the settings name it."""
    world = ensure_quickstart_world(cache_folder())
    data, model = config.data, config.model
    if str(data.root) == DATA:
        data = data.model_copy(update={"root": world.data})
    if model.policy == MODEL:
        model = model.model_copy(update={"policy": str(world.model)})
    return config.model_copy(update={"data": data, "model": model})
