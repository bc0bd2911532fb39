"""A word-level tokenizer, a run in a temporary folder, and scored rollouts to spoil."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlhf_core.config.run import RunConfig
from rlhf_core.data.store import RunFolder

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|> {{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}<|assistant|> {% endif %}"
)
SPECIAL = ["<pad>", "<eos>", "<unk>", "<|system|>", "<|user|>", "<|assistant|>"]


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """Words are cut at white space; `w0` … `w99` are known."""
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *(f"w{n}" for n in range(100))])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    wrapped.add_special_tokens({"additional_special_tokens": SPECIAL[3:]})
    wrapped.chat_template = TEMPLATE
    return wrapped


@pytest.fixture
def write_lines(tmp_path: Path) -> Callable[[str, Sequence[Mapping[str, Any]]], Path]:
    """Write rows as JSON lines into the temporary folder."""

    def write(name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., RunConfig]:
    """A run's configuration over sources in the temporary folder."""

    def make(data: Mapping[str, Any], **rest: Any) -> RunConfig:
        settings = {
            "reward": {"scorer": "callable", "callable": {"path": "m:f"}},
            "ppo": {"ptx": {"enabled": False}},
            **rest,
        }
        data = {"root": tmp_path, "prompts": [{"path": "prompts.jsonl"}], **data}
        return RunConfig.model_validate({"name": "t", "model": {"policy": "sft"}, "data": data, **settings})

    return make


@pytest.fixture
def make_runtime(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> Callable[[RunConfig], Any]:
    """What the data stages use of a runtime."""
    return lambda config: SimpleNamespace(config=config, folder=RunFolder(tmp_path / "run"), tokenizer=tokenizer)


@pytest.fixture
def scored() -> pd.DataFrame:
    """Eight sound scored rollouts of iteration 3."""
    n = 8
    columns = {
        "iteration": 3, "sample_index": 0, "domain": "general", "prompt": "w1 w2", "response": "w3 w4", "seed": 7,
        "finish_reason": "eos", "ending": "natural", "attempts": 1, "rejected_by": None, "policy_step": 2,
        "valid": True, "exclude_reason": None,
    }  # fmt: skip
    frame = pd.DataFrame({name: [value] * n for name, value in columns.items()})
    return frame.assign(
        prompt_id=[f"p{row}" for row in range(n)],
        prompt_ids=[[4, 5, 6]] * n,
        response_ids=[[7] * (row + 1) for row in range(n)],
        engine_logprobs=[[-0.5] * (row + 1) for row in range(n)],
        reward_raw=[float(row) for row in range(n)],
        reward=[row / 8 for row in range(n)],
    )
