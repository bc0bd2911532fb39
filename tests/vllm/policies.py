"""Real policies for a real vLLM: checkpoints as the trainer writes them, from a model that is there or a random one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from rlhf_core.config.models import ModelConfig
from rlhf_core.data.refs import CheckpointRef, ControlState
from rlhf_core.data.store import MANIFEST, file_sha256, write_json
from rlhf_core.models.loading import load_policy
from rlhf_core.models.packed_attention import use_packed_attention
from rlhf_core.models.scoring import micro_inference
from rlhf_core.quickstart.base_model import BaseModelSettings, llama_config
from rlhf_core.quickstart.tokenizer import build_tokenizer, words_of
from rlhf_core.quickstart.world import World
from tests.tiny_model import TINY_WORLD

SETTINGS = BaseModelSettings(hidden_size=128, intermediate_size=256, layers=2, heads=2)
"""vLLM's attention on a CPU wants heads of a usual size."""


def random_policy() -> tuple[Any, Any]:
    """A random model with a tied head, and its tokenizer."""
    tokenizer = build_tokenizer(words_of(World(TINY_WORLD, 0).words()))
    torch.manual_seed(0)
    config = llama_config(SETTINGS, tokenizer)
    config.tie_word_embeddings = True
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():  # from nearly uniform to opinionated, so that a difference shows
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4)
    use_packed_attention(model)
    return model, tokenizer


def stored_policy(folder: Path) -> tuple[Any, Any]:
    """A model that is there."""
    model = load_policy(folder, ModelConfig(policy=str(folder)), torch.device("cpu"))
    return model, AutoTokenizer.from_pretrained(folder)


def updated(model: Any, seed: int, size: float = 0.05) -> None:
    """Change all weights by noise of that share of their spread, as an update would, only larger."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * parameter.std() * size)


def save_policy(root: Path, model: Any, tokenizer: Any, step: int) -> CheckpointRef:
    """A checkpoint's folder as far as a rollout engine looks at it."""
    path = root / f"step-{step:06d}"
    model.save_pretrained(path / "policy")
    tokenizer.save_pretrained(path / "policy")
    write_json(path / "state.json", {"micro_inference": micro_inference(model)})
    files = {
        str(file.relative_to(path)): {"bytes": file.stat().st_size, "sha256": file_sha256(file)}
        for file in path.rglob("*")
        if file.is_file()
    }
    write_json(path / MANIFEST, {"files": files})
    return CheckpointRef(step=step, path=path, control=ControlState(kl_coef=0.1, ptx_coef=0.0))


def trainer_logprobs(model: Any, prompt: tuple[int, ...], response: tuple[int, ...], temperature: float) -> list[float]:
    """The definition, by a plain forward pass."""
    ids = torch.tensor([*prompt, *response])
    with torch.no_grad():
        logits = model(input_ids=ids[None]).logits[0].double() / temperature
    logprobs = torch.log_softmax(logits, dim=-1)
    return [float(logprobs[len(prompt) + place - 1, token]) for place, token in enumerate(response)]
