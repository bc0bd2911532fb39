"""Models that judge safety, from safetensors alone and without code from a hub (F7)."""

from __future__ import annotations

from typing import Any, cast

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging as hf_logging

from rlhf_core.config.rejection import SafetyConfig
from rlhf_core.errors import ConfigError
from rlhf_core.models.loading import resolve_model


def load_model(kind: Any, config: SafetyConfig, device: torch.device) -> Any:
    """The model in float32 on a CPU and bfloat16 on a GPU, in eval mode.

    Raises:
        ConfigError: it cannot be loaded, its files lack weights, or its window is smaller than `max_tokens`.
    """
    path = str(config.path)
    name, verbosity = resolve_model(path), hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()  # A missing head is looked at here, not printed.
    try:
        model, info = kind.from_pretrained(
            name,
            dtype=torch.bfloat16 if device.type == "cuda" else torch.float32,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"rollout.rejection.safety: the model {path} cannot be loaded: {error}") from error
    finally:
        hf_logging.set_verbosity(verbosity)
    lacking = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if lacking:
        raise ConfigError(
            f"rollout.rejection.safety: {path} lacks {len(lacking)} weights of a {type(model).__name__}, the first is "
            f"{lacking[0]}. Give the folder of a trained model of that kind."
        )
    window = getattr(model.config, "max_position_embeddings", None)
    if window is not None and config.max_tokens > window:
        raise ConfigError(
            f"rollout.rejection.safety.max_tokens={config.max_tokens} exceeds the window of {path}, {window} tokens. "
            f"Set it to at most {window}; longer responses are read in parts."
        )
    return model.to(device).eval()


def load_model_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """The model's tokenizer. Raises ConfigError where there is none."""
    try:
        return cast(PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(resolve_model(path)))
    except (OSError, ValueError) as error:
        raise ConfigError(f"rollout.rejection.safety: the tokenizer of {path} cannot be loaded: {error}") from error
