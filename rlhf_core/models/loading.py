"""From a folder or hub name to tokenizer and models, with errors that say what is missing.

Weights are read from safetensors alone, code from a hub is never run (F7), and a weight that the files do not hold is
an error instead of a random tensor.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from rlhf_core.config.models import ModelConfig
from rlhf_core.errors import ConfigError
from rlhf_core.models.heads import ValueModel
from rlhf_core.models.lean_layers import decoder_linears, use_lean_layers
from rlhf_core.models.packed_attention import use_packed_attention
from rlhf_core.models.precision import effective_autocast
from rlhf_core.models.value_context import ContextHeads, sentence_ends

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")

disable_progress_bar()
if not torch.cuda.is_available():
    # transformers imports DeepSpeed where that is installed, and DeepSpeed warns each time that it has to guess.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")


def resolve_model(name: str) -> str:
    """Return what transformers can load: a folder that looks like a model, or a hub name.

    Raises:
        ConfigError: the folder is missing, holds no config.json, or holds a GGUF file.
    """
    path = Path(name)
    if not path.exists():
        if name.count("/") <= 1 and not name.startswith((".", "/", "~")):
            return name
        raise ConfigError(
            f"the model folder {name} does not exist. Give an existing folder, or a hub name such as owner/model."
        )
    if path.suffix == ".gguf" or (path.is_dir() and not (path / "config.json").exists() and any(path.glob("*.gguf"))):
        raise ConfigError(
            f"{name} is a GGUF model. Load it once with AutoModelForCausalLM.from_pretrained(folder, gguf_file=…), "
            "save it with save_pretrained, and give that folder."
        )
    if not (path / "config.json").is_file():
        raise ConfigError(
            f"{name} is no model folder: it has no config.json. Give a folder that save_pretrained wrote."
        )
    return name


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """Return the policy's tokenizer; it has an EOS token and a chat template.

    Raises:
        ConfigError: there is no tokenizer, no EOS token or no chat template.
    """
    name = resolve_model(config.policy)
    if Path(name).is_dir() and not any((Path(name) / file).is_file() for file in _TOKENIZER_FILES):
        raise ConfigError(
            f"the model folder {name} has no tokenizer (none of {', '.join(_TOKENIZER_FILES)}). "
            "Save the tokenizer that the model was trained with into it: tokenizer.save_pretrained(folder)."
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, revision=config.revision or "main")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the tokenizer of {name} cannot be loaded: {error}") from error
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"the tokenizer of {name} has no EOS token, so no response could end. Set eos_token in it.")
    if not tokenizer.chat_template:
        raise ConfigError(
            f"the tokenizer of {name} has no chat template, so prompts cannot be put into the model's form. Use an SFT "
            "model that has one, or set tokenizer.chat_template and save the tokenizer into the folder."
        )
    return cast(PreTrainedTokenizerBase, tokenizer)


def pad_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id that fills empty places. It may be EOS: masks come from lengths, never from ids (E02)."""
    pad = cast("int | None", tokenizer.pad_token_id)
    return cast(int, tokenizer.eos_token_id) if pad is None else pad


def load_policy(path: str | Path, config: ModelConfig, device: torch.device) -> PreTrainedModel:
    """Return the causal LM in float32, in eval mode and without dropout.

    Raises:
        ConfigError: the folder or name cannot be loaded, weights are missing, or the head has a bias.
    """
    model = _load(AutoModelForCausalLM, str(path), config, torch.float32)
    head = cast(Any, model.get_output_embeddings())
    if head is None or getattr(head, "bias", None) is not None:
        raise ConfigError(
            f"{path}: {type(model).__name__} has no language-model head without bias; use a decoder-only causal LM."
        )
    return _placed(model, config, device)


def load_reference(path: str | Path, config: ModelConfig, device: torch.device) -> PreTrainedModel:
    """Return the frozen reference in `config.reference_dtype`. Raises ConfigError as `load_policy` does.

    Where autocast rounds the weights of projections anyway, a float32 reference holds those alone in that dtype, which
    changes no number: it must be called under autocast. The others are copied: one that still lies in the mapped file
    would keep all of that in memory.
    """
    model = load_policy(path, config, device).requires_grad_(False).to(getattr(torch, config.reference_dtype))
    is_rounded = config.reference_dtype == "float32" and effective_autocast(device, config.autocast) == "bfloat16"
    rounded = decoder_linears(model) if is_rounded else []
    for layer in rounded:
        layer.to(torch.bfloat16)
    if rounded:
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
    return model


def load_critic(path: str | Path, config: ModelConfig, device: torch.device) -> ValueModel:
    """Return a value model with the body found in `path`: causal LM, reward model, or a critic that was saved.

    The value head is the folder's own, the reward model's score, or 0: a fresh critic values everything at 0.

    Raises:
        ConfigError: the folder or name cannot be loaded, weights are missing, or it is of a critic whose value head is
            of another kind than `config.value_head`.
    """
    body = _placed(_load(AutoModel, str(path), config, torch.float32), config, device)
    context = None
    if config.value_head == "hierarchical":
        size = cast(int, body.config.hidden_size)
        vocab_size = cast(Any, body.get_input_embeddings()).weight.shape[0]
        context = ContextHeads(size, sentence_ends(load_tokenizer(config), vocab_size), config.value_head_weights)
    critic = ValueModel(body, context).to(device)
    critic.load_head(Path(path))
    return critic


def _load(kind: Any, path: str, config: ModelConfig, dtype: torch.dtype) -> PreTrainedModel:
    name = resolve_model(path)
    revision = config.revision if path == config.policy and config.revision else "main"
    try:
        model, info = kind.from_pretrained(
            name,
            revision=revision,
            dtype=dtype,
            attn_implementation="sdpa",
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"the model {name} cannot be loaded: {error}") from error
    lacking = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if lacking:
        raise ConfigError(
            f"the weights of {name} are incomplete: {len(lacking)} are missing or of another shape, the first is "
            f"{lacking[0]}. Give a folder whose weights fit its config.json ({type(model).__name__})."
        )
    return cast(PreTrainedModel, model)


def _placed(model: PreTrainedModel, config: ModelConfig, device: torch.device) -> PreTrainedModel:
    _switch_dropout_off(model)
    use_packed_attention(model)
    use_lean_layers(model)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    cast(Any, model).to(device)
    return model.eval()


def _switch_dropout_off(model: PreTrainedModel) -> None:
    """Set every dropout to 0, so that train mode (which checkpointing needs) samples nothing."""
    for owner in model.modules():
        for name, value in list(vars(owner).items()):
            if ("drop" in name or name == "p") and isinstance(value, float) and value > 0:
                setattr(owner, name, 0.0)
