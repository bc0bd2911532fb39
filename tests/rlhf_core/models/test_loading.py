"""What a folder must hold, and what is said where it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PhiConfig, PhiForCausalLM

from rlhf_core.config.models import ModelConfig
from rlhf_core.errors import ConfigError
from rlhf_core.models.loading import (
    load_critic,
    load_policy,
    load_reference,
    load_tokenizer,
    pad_token_id,
    resolve_model,
)
from rlhf_core.models.packed_attention import body_hidden
from rlhf_core.numerics import head_matmul
from tests.tiny_model import make_tiny_model

CPU = torch.device("cpu")


def config_for(folder: Path | str) -> ModelConfig:
    return ModelConfig(policy=str(folder))


def test_a_hub_name_is_passed_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve_model("owner/model") == "owner/model"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: root / "none" / "here", "does not exist"),
        (lambda root: root, "no config.json"),
        (lambda root: ((root / "model.gguf").write_bytes(b"") and None) or root, "GGUF"),
        (lambda root: (root / "m.gguf").touch() or root / "m.gguf", "GGUF"),
    ],
)
def test_what_is_no_model_folder_is_named(tmp_path, make, message):
    with pytest.raises(ConfigError, match=message):
        resolve_model(str(make(tmp_path)))


def test_a_folder_without_tokenizer_is_refused(tmp_path):
    model = make_tiny_model(tmp_path / "model", has_tokenizer=False)
    with pytest.raises(ConfigError, match="has no tokenizer"):
        load_tokenizer(config_for(model))


def test_a_damaged_tokenizer_is_refused(tmp_path):
    model = make_tiny_model(tmp_path / "model")
    (model / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_tokenizer(config_for(model))


def test_a_tokenizer_without_chat_template_is_refused(tmp_path):
    model = make_tiny_model(tmp_path / "model", has_chat_template=False)
    with pytest.raises(ConfigError, match="no chat template"):
        load_tokenizer(config_for(model))


def test_a_tokenizer_without_eos_is_refused(tmp_path):
    model = make_tiny_model(tmp_path / "model")
    path = model / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings.pop("eos_token")
    path.write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match="no EOS token"):
        load_tokenizer(config_for(model))


def test_case_E02_the_pad_id_is_the_tokenizers_own_or_eos(tmp_path):
    own = load_tokenizer(config_for(make_tiny_model(tmp_path / "own")))
    shared = load_tokenizer(config_for(make_tiny_model(tmp_path / "shared", pad_is_eos=True)))
    assert pad_token_id(own) == own.pad_token_id != own.eos_token_id
    assert pad_token_id(shared) == shared.eos_token_id
    own.pad_token = None
    assert pad_token_id(own) == own.eos_token_id


def test_policy_and_reference_are_loaded_as_configured(tmp_path):
    model = make_tiny_model(tmp_path / "model")
    policy = load_policy(model, config_for(model), CPU)
    reference = load_reference(model, ModelConfig(policy=str(model), reference_dtype="bfloat16"), CPU)
    assert not policy.training
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    assert {p.dtype for p in reference.parameters()} == {torch.bfloat16}
    assert not any(p.requires_grad for p in reference.parameters())


def test_under_autocast_the_reference_holds_its_projections_rounded_and_says_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(head_matmul, "cpu_multiplies_bfloat16", lambda: True)
    folder = make_tiny_model(tmp_path / "model")
    config = ModelConfig(policy=str(folder), autocast="bfloat16")
    policy, reference = load_policy(folder, config, CPU), load_reference(folder, config, CPU)
    bytes_held = [sum(p.nbytes for p in model.model.layers.parameters()) for model in (policy, reference)]
    assert bytes_held[1] < 0.52 * bytes_held[0]
    assert reference.get_input_embeddings().weight.dtype == torch.float32
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        said = [body_hidden(model.model, torch.arange(9), torch.arange(9), (9,)) for model in (policy, reference)]
    assert torch.equal(said[0], said[1])


def test_a_missing_weight_is_an_error_and_not_a_random_tensor(tmp_path):
    model = make_tiny_model(tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    weights.pop("model.norm.weight")
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"model\.norm\.weight"):
        load_policy(model, config_for(model), CPU)


def test_a_model_that_cannot_be_fetched_is_refused():
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_policy("nobody/nothing", config_for("nobody/nothing"), CPU)


def test_a_head_with_a_bias_is_refused(tmp_path):
    config = PhiConfig(vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    PhiForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="without bias"):
        load_policy(tmp_path, config_for(tmp_path), CPU)


def test_no_dropout_is_left(tmp_path):
    config = LlamaConfig(
        vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        attention_dropout=0.5,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    policy = load_policy(tmp_path, config_for(tmp_path), CPU)
    ids = torch.arange(8)[None]
    expected = policy(ids).logits
    assert torch.equal(policy.train()(ids).logits, expected)
    assert policy.config.attention_dropout == 0.5


def test_the_critic_can_start_from_a_reward_model_with_its_score(tmp_path):
    config = LlamaConfig(
        vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_labels=1
    )
    LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    critic = load_critic(tmp_path, config_for(tmp_path), CPU)
    reward_model = LlamaForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(critic.head.weight, reward_model.score.weight)
    assert torch.equal(critic.body.embed_tokens.weight, reward_model.model.embed_tokens.weight)
