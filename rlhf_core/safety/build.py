"""From the settings to a safety classifier."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from rlhf_core.config.rejection import SafetyConfig
from rlhf_core.data.store import file_sha256
from rlhf_core.errors import ConfigError
from rlhf_core.safety.packaged import WEIGHTS, load_packaged
from rlhf_core.safety.protocol import SafetyClassifier


def build_safety(config: SafetyConfig | None, device: torch.device) -> SafetyClassifier:
    """The configured classifier, on `device` where it is a neural one.

    Raises:
        ConfigError: none is configured, the model cannot be loaded, or it does not have the labels or words named.
    """
    if config is None:
        raise ConfigError(
            "rollout.rejection.safety names no classifier. Set e.g. rollout.rejection.safety.kind=packaged."
        )
    if config.kind == "packaged":
        return load_packaged()
    if config.kind == "text-classification":
        from rlhf_core.safety.text_classification import load_text_classifier

        return load_text_classifier(config, device)
    from rlhf_core.safety.chat_judge import load_chat_judge

    return load_chat_judge(config, device)


def safety_identity(config: SafetyConfig) -> list[Any]:
    """What decides whether stored verdicts are still this classifier's: its weights, or a model's files."""
    if config.path is None:
        with_weights = Path(str(files("rlhf_core.safety"))) / WEIGHTS
        return [config.kind, file_sha256(with_weights)]
    folder = Path(config.path)
    names = sorted(path for path in folder.glob("*") if path.is_file()) if folder.is_dir() else []
    small = [file_sha256(path) for path in names if path.suffix == ".json"]
    return [config.kind, config.path, [[path.name, path.stat().st_size] for path in names], small]
