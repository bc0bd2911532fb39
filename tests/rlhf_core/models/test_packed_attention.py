"""No sequence of a pack sees another, and other calls keep the library's attention."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from rlhf_core.errors import ConfigError
from rlhf_core.models.packed_attention import body_hidden, use_packed_attention
from rlhf_core.numerics import head_matmul

SIZES = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.fixture
def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2)).eval()


@torch.no_grad()
def test_a_packed_sequence_has_the_hidden_states_that_it_has_alone(llama):
    lengths = (5, 1, 7)
    ids = torch.randint(0, 30, (sum(lengths),))
    alone = [llama.model(piece[None]).last_hidden_state[0] for piece in ids.split(lengths)]
    use_packed_attention(llama)
    positions = torch.cat([torch.arange(length) for length in lengths])
    torch.testing.assert_close(body_hidden(llama.model, ids, positions, lengths), torch.cat(alone), rtol=0, atol=1e-6)


@torch.no_grad()
def test_in_bfloat16_either_attention_gives_the_same_up_to_rounding(llama, monkeypatch):
    use_packed_attention(llama)
    lengths = (80, 3)
    ids, positions = torch.arange(83) % 30, torch.cat([torch.arange(length) for length in lengths])
    found = {}
    for has_units in (True, False):
        monkeypatch.setattr(head_matmul, "cpu_multiplies_bfloat16", lambda has_units=has_units: has_units)
        with torch.autocast("cpu", torch.bfloat16):
            found[has_units] = body_hidden(llama.model, ids, positions, lengths)
    assert not torch.equal(found[True], found[False])
    torch.testing.assert_close(found[True], found[False], rtol=0, atol=0.03)


@torch.no_grad()
def test_in_bfloat16_a_longer_neighbour_does_not_change_a_sequences_bits(llama, monkeypatch):
    monkeypatch.setattr(head_matmul, "cpu_multiplies_bfloat16", lambda: True)
    use_packed_attention(llama)
    found = []
    for lengths in ((40, 20), (40, 300)):
        positions = torch.cat([torch.arange(length) for length in lengths])
        with torch.autocast("cpu", torch.bfloat16):
            found.append(body_hidden(llama.model, torch.arange(sum(lengths)) % 30, positions, lengths)[:40])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@torch.no_grad()
def test_padded_calls_and_generation_stay_those_of_the_library(llama):
    ids = torch.randint(3, 30, (2, 6))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    settings = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    before = llama(ids, attention_mask=mask).logits, llama.generate(ids, attention_mask=mask, **settings)
    use_packed_attention(llama)
    after = llama(ids, attention_mask=mask).logits, llama.generate(ids, attention_mask=mask, **settings)
    torch.testing.assert_close(after[0], before[0], rtol=0, atol=1e-6)
    assert torch.equal(after[1], before[1])


def test_a_saved_model_does_not_ask_for_our_attention(llama, tmp_path):
    use_packed_attention(llama)
    llama.save_pretrained(tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"


def test_a_window_shorter_than_a_sequence_is_refused_and_a_longer_one_is_not():
    model = MistralForCausalLM(MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=4)).eval()
    use_packed_attention(model)
    ids = torch.arange(5)
    assert body_hidden(model.model, ids[:4], torch.arange(4), (4,)).shape == (4, 16)
    with pytest.raises(ConfigError, match="window of 4 tokens"):
        body_hidden(model.model, ids, torch.arange(5), (5,))


def test_a_model_without_exchangeable_attention_is_refused(llama, monkeypatch):
    monkeypatch.setattr(type(llama), "_supports_attention_backend", False)
    with pytest.raises(ConfigError, match="exchangeable attention"):
        use_packed_attention(llama)
