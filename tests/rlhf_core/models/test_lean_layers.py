"""Lean layers give the library's values and gradients and store less."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlhf_core.models.lean_layers import decoder_linears, use_lean_layers
from rlhf_core.models.packed_attention import body_hidden, use_packed_attention

SIZES = {
    "vocab_size": 30,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
FAMILIES = {
    "Llama": (LlamaForCausalLM, LlamaConfig),
    "Mistral": (MistralForCausalLM, MistralConfig),
    "Qwen2": (Qwen2ForCausalLM, Qwen2Config),
    "Qwen3": (Qwen3ForCausalLM, Qwen3Config),
}
LENGTHS = (7, 1, 12)


def make(family: str, **changed) -> nn.Module:
    torch.manual_seed(0)
    kind, config = FAMILIES[family]
    model = kind(config(**(SIZES | changed))).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            nn.init.normal_(parameter, mean=1.0, std=0.3)
        elif "proj.weight" in name:
            nn.init.normal_(parameter, std=0.2)
    use_packed_attention(model)
    return model


def lean(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model)
    use_lean_layers(model)
    return model


def hidden_and_gradients(model: nn.Module, *, autocast: bool) -> tuple[Tensor, dict[str, Tensor], int]:
    """Last hidden states, the gradients of one number made of them, and the bytes that the forward pass kept."""
    kept: dict[int, int] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.arange(sum(LENGTHS)) * 7 % 30
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            hidden = body_hidden(model.model, ids, positions, LENGTHS)
        directions = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))
        total = (hidden.float() * directions).sum()
    total.backward()
    gradients = {name: parameter.grad for name, parameter in model.model.named_parameters()}
    return hidden.detach(), gradients, sum(kept.values())


def distance(some: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    """The norm of all differences over that of `others`."""
    gap = sum(float((some[name].double() - others[name].double()).square().sum()) for name in others)
    return (gap / sum(float(other.double().square().sum()) for other in others.values())) ** 0.5


@pytest.mark.parametrize("family", FAMILIES)
def test_values_are_the_librarys_to_the_bit_and_gradients_to_rounding(family):
    stock = make(family)
    (before, expected, _), (after, found, _) = (
        hidden_and_gradients(model, autocast=False) for model in (copy.deepcopy(stock), lean(stock))
    )
    assert torch.equal(before, after)
    for name, gradient in expected.items():
        assert distance({name: found[name]}, {name: gradient}) < 1e-5, name
    assert distance(found, expected) < 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_under_autocast_values_are_the_same_and_gradients_as_near_to_float32s(family):
    stock = make(family)
    _, exact, _ = hidden_and_gradients(copy.deepcopy(stock), autocast=False)
    (before, theirs, _), (after, ours, _) = (
        hidden_and_gradients(model, autocast=True) for model in (copy.deepcopy(stock), lean(stock))
    )
    assert torch.equal(before, after)
    assert all(gradient.dtype == torch.float32 for gradient in ours.values())
    assert 1e-4 < distance(ours, exact) < 1.25 * distance(theirs, exact)


@pytest.mark.parametrize(("autocast", "share"), [(False, 0.75), (True, 0.45)])
def test_less_is_kept_for_the_backward_pass(autocast, share):
    stock = make("Llama")
    kept = [hidden_and_gradients(model, autocast=autocast)[2] for model in (copy.deepcopy(stock), lean(stock))]
    assert kept[1] < share * kept[0]


def test_another_activation_is_left_to_the_library():
    stock = make("Llama", hidden_act="gelu")
    (before, expected, _), (after, found, _) = (
        hidden_and_gradients(model, autocast=False) for model in (copy.deepcopy(stock), lean(stock))
    )
    assert torch.equal(before, after) and distance(found, expected) < 1e-6


def test_an_architecture_with_another_norm_is_left_alone():
    model = Gemma2ForCausalLM(Gemma2Config(**SIZES))
    use_lean_layers(model)
    assert not any("forward" in vars(module) for module in model.modules()) and not decoder_linears(model)


def test_weights_in_bfloat16_are_read_by_the_librarys_norm():
    stock = make("Llama").to(torch.bfloat16)
    (before, expected, _), (after, found, _) = (
        hidden_and_gradients(model, autocast=False) for model in (copy.deepcopy(stock), lean(stock))
    )
    assert torch.equal(before, after) and distance(found, expected) < 0.02


@pytest.mark.parametrize("family", FAMILIES)
def test_recomputed_activations_give_the_same_gradients(family):
    plain, recomputing = (lean(make(family)) for _ in range(2))
    recomputing.gradient_checkpointing_enable({"use_reentrant": False})
    recomputing.train()
    results = [hidden_and_gradients(model, autocast=True) for model in (plain, recomputing)]
    assert all(torch.equal(results[0][1][name], results[1][1][name]) for name in results[0][1])
