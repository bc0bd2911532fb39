"""A random tiny Llama with a tokenizer, and small data files, for every test that needs a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from rlhf_core.quickstart.base_model import BaseModelSettings, llama_config
from rlhf_core.quickstart.tokenizer import EOS, build_tokenizer, save_tokenizer, words_of
from rlhf_core.quickstart.world import World, WorldSettings

TINY_MODEL = BaseModelSettings(hidden_size=32, intermediate_size=64, layers=2, heads=2)
TINY_WORLD = WorldSettings(
    subjects_per_domain=3,
    sft_rows=16,
    ptx_rows=48,
    prompt_rows=48,
    held_out_prompt_rows=16,
    preference_train_rows=48,
    preference_eval_rows=24,
)


@dataclass(frozen=True)
class TinyWorld:
    """`data` holds the quickstart's files, few rows each; `model` is a Hugging Face folder."""

    root: Path
    data: Path
    model: Path


def make_tiny_world(
    root: Path,
    *,
    seed: int = 0,
    pad_is_eos: bool = False,
    has_chat_template: bool = True,
    has_tokenizer: bool = True,
) -> TinyWorld:
    """Write `root/data` and `root/model`.

    Args:
        root: a folder, made where it is missing; it must not hold a world yet.
        seed: of the facts, the texts and the random weights.
        pad_is_eos: the tokenizer's pad token is its EOS token, as SmolLM2's is (case E02).
        has_chat_template: False leaves the tokenizer without one.
        has_tokenizer: False leaves the model folder without any tokenizer file.
    """
    data = root / "data"
    data.mkdir(parents=True)
    World(TINY_WORLD, seed).write(data)
    model = make_tiny_model(
        root / "model",
        seed=seed,
        pad_is_eos=pad_is_eos,
        has_chat_template=has_chat_template,
        has_tokenizer=has_tokenizer,
    )
    return TinyWorld(root, data, model)


def make_tiny_model(
    folder: Path,
    *,
    seed: int = 0,
    pad_is_eos: bool = False,
    has_chat_template: bool = True,
    has_tokenizer: bool = True,
) -> Path:
    """Write a random Llama (2 layers, hidden size 32) that knows the words of `make_tiny_world`; returns the folder."""
    tokenizer = build_tokenizer(words_of(World(TINY_WORLD, seed).words()))
    if pad_is_eos:
        tokenizer.pad_token = EOS
    if not has_chat_template:
        tokenizer.chat_template = None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(llama_config(TINY_MODEL, tokenizer))
    folder.mkdir(parents=True)
    model.eval().save_pretrained(str(folder))
    if has_tokenizer:
        save_tokenizer(tokenizer, folder)
    return folder
