"""What a run was made with: versions of code and packages, machine, settings."""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import torch

from rlhf_core import __version__
from rlhf_core.config.load import config_hash
from rlhf_core.config.run import RunConfig

_PACKAGES = ("torch", "transformers", "prefect", "great-expectations", "lm-eval", "pandas", "numpy")


def versions(config: RunConfig) -> dict[str, object]:
    """The content of a run folder's manifest.json."""
    found: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return {
        "code_version": __version__,
        "config_sha256": config_hash(config),
        "seed": config.seed,
        "packages": found,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "torch_threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] or ["cpu"],
        "config": json.loads(config.model_dump_json()),
    }
