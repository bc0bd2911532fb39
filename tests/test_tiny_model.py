"""The tiny world of the test suite."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.tiny_model import make_tiny_model, make_tiny_world


def test_a_tiny_world_loads_as_a_hugging_face_folder_and_generates(tmp_path):
    world = make_tiny_world(tmp_path / "world")
    tokenizer = AutoTokenizer.from_pretrained(str(world.model))
    model = AutoModelForCausalLM.from_pretrained(str(world.model))
    assert sum(weight.numel() for weight in model.parameters()) < 100_000
    turns = [{"role": "user", "content": "What does the otter eat?"}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    ids = torch.tensor([tokenizer.encode(text)])
    assert tokenizer.unk_token_id not in ids
    out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False)
    assert out.shape[1] > ids.shape[1]
    assert sorted(path.name for path in world.data.iterdir()) == [
        "hellaswag.jsonl",
        "mmlu",
        "preferences_eval.jsonl",
        "preferences_train.jsonl",
        "prompts.jsonl",
        "prompts_heldout.jsonl",
        "ptx.jsonl",
        "sft.jsonl",
    ]


def test_variants_differ_in_what_they_are_named_for(tmp_path):
    shared = AutoTokenizer.from_pretrained(str(make_tiny_model(tmp_path / "shared", pad_is_eos=True)))
    assert shared.pad_token_id == shared.eos_token_id
    bare = AutoTokenizer.from_pretrained(str(make_tiny_model(tmp_path / "bare", has_chat_template=False)))
    assert bare.chat_template is None and bare.pad_token_id != bare.eos_token_id
    folder = make_tiny_model(tmp_path / "none", has_tokenizer=False)
    assert not list(folder.glob("*token*"))
    with pytest.raises((OSError, ValueError)):
        AutoTokenizer.from_pretrained(str(folder))
