"""Decoder layers that store little for the backward pass; what is quick to compute anew is computed anew.

The values are Hugging Face's own. Its norm stores three tensors of float32, its gated product four, and autocast casts
a norm's result once for every projection that reads it and keeps a second copy of every weight until the backward
pass. Here a norm stores its input, a gated product its two factors, and a projection its input.
"""

from __future__ import annotations

from types import MethodType
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from rlhf_core.numerics.head_matmul import autocast_dtype

_SHARDED = "ds_id"
"""ZeRO-3 marks parameters so; it gathers them around their own module's call alone."""
_LAYER = "DecoderLayer"
_FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
"""Architectures whose norm is `weight * x / rms(x)` and whose MLP is `down(act(gate(x)) * up(x))`."""


def use_lean_layers(model: PreTrainedModel) -> None:
    """Let the decoder layers of a known architecture store little; others stay as they are."""
    for layer in _known_layers(model):
        family = type(layer).__name__.removesuffix(_LAYER)
        # Norms inside the attention (Qwen3) are not read by a projection and stay in float32.
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.forward = MethodType(_norm_forward, norm)
        if type(layer.mlp).__name__ == f"{family}MLP" and layer.mlp.config.hidden_act == "silu":
            layer.mlp.forward = MethodType(_mlp_forward, layer.mlp)
    for linear in decoder_linears(model):
        linear.forward = MethodType(_linear_forward, linear)


def decoder_linears(model: PreTrainedModel) -> list[nn.Linear]:
    """The projections in the decoder layers of a known architecture."""
    return [module for layer in _known_layers(model) for module in layer.modules() if type(module) is nn.Linear]


def is_lean_linear(module: nn.Linear) -> bool:
    """Whether the module's forward is the one that `use_lean_layers` gave it: without gradients, torch's own."""
    return getattr(vars(module).get("forward"), "__func__", None) is _linear_forward


def _known_layers(model: PreTrainedModel) -> list[Any]:
    names = {family + _LAYER for family in _FAMILIES}
    return [module for module in model.modules() if type(module).__name__ in names]


def _norm_forward(module: Any, hidden: Tensor) -> Tensor:
    if hidden.dtype != torch.float32 or module.weight.dtype != torch.float32:
        return type(module).forward(module, hidden)
    out_dtype = autocast_dtype(hidden.device.type) or torch.float32
    return cast(Tensor, _RmsNorm.apply(hidden, module.weight, module.variance_epsilon, out_dtype))


def _mlp_forward(module: Any, hidden: Tensor) -> Tensor:
    gate, up, down = module.gate_proj(hidden), module.up_proj(hidden), module.down_proj
    is_plain = is_lean_linear(down) and down.bias is None and not hasattr(down.weight, _SHARDED)
    if not is_plain or not torch.is_grad_enabled():
        return down(_GatedSilu.apply(gate, up))
    dtype = autocast_dtype(hidden.device.type) or gate.dtype
    return cast(Tensor, _GatedProjection.apply(gate, up, down.weight, dtype))


def _linear_forward(module: Any, hidden: Tensor) -> Tensor:
    # Without gradients autocast's copy of a weight is reused from token to token.
    dtype = autocast_dtype(hidden.device.type) if torch.is_grad_enabled() else None
    if dtype is None or module.bias is not None or module.weight.dtype == dtype:
        return nn.Linear.forward(module, hidden)
    return cast(Tensor, _CastLinear.apply(hidden, module.weight, dtype))


class _RmsNorm(torch.autograd.Function):
    """`weight * x / rms(x)` in float32, handed on in the dtype that the projections work in."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Float[Tensor, "*rows size"], weight: Float[Tensor, " size"], eps: float, dtype: torch.dtype
    ) -> Tensor:
        inverse_rms = torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(hidden, weight, inverse_rms)
        return (hidden * inverse_rms).mul_(weight).to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]  torch's own signature is variadic
        hidden, weight, inverse_rms = ctx.saved_tensors
        size = hidden.shape[-1]
        unit = hidden * inverse_rms
        grad = grad.float()
        product = grad * unit
        grad_weight = product.reshape(-1, size).sum(0)
        along = (product @ weight / size)[..., None]
        return torch.addcmul(grad * weight, unit, along, value=-1).mul_(inverse_rms), grad_weight, None, None


class _GatedSilu(torch.autograd.Function):
    """`silu(gate) * up`."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return torch.nn.functional.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]  as above
        gate, up = ctx.saved_tensors
        grad_gate = torch.ops.aten.silu_backward(grad * up, gate)
        return cast(Tensor, grad_gate), torch.nn.functional.silu(gate).mul_(grad)


class _GatedProjection(torch.autograd.Function):
    """`linear(silu(gate) * up, weight)`; the product is computed anew in the backward pass."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(gate, up, weight)
        with torch.autocast(gate.device.type, enabled=False):
            return torch.nn.functional.linear(torch.nn.functional.silu(gate).mul_(up).to(dtype), weight.to(dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]  as above
        gate, up, weight = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            activated = torch.nn.functional.silu(gate)
            grad_weight = _weight_gradient(grad, activated * up).to(weight.dtype)
            grad_product = (grad @ weight.to(grad.dtype)).to(gate.dtype)
            grad_gate = torch.ops.aten.silu_backward(grad_product * up, gate)
        return cast(Tensor, grad_gate), activated.mul_(grad_product), grad_weight, None


class _CastLinear(torch.autograd.Function):
    """A projection under autocast that keeps no second copy of its weight."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.hidden_dtype = hidden.dtype
        hidden = hidden.to(dtype)
        ctx.save_for_backward(hidden, weight)
        with torch.autocast(hidden.device.type, enabled=False):
            return torch.nn.functional.linear(hidden, weight.to(dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]  as above
        hidden, weight = ctx.saved_tensors
        grad_hidden = grad_weight = None
        with torch.autocast(hidden.device.type, enabled=False):
            if ctx.needs_input_grad[0]:
                grad_hidden = (grad @ weight.to(grad.dtype)).to(ctx.hidden_dtype)
            if ctx.needs_input_grad[1]:
                grad_weight = _weight_gradient(grad, hidden).to(weight.dtype)
        return grad_hidden, grad_weight, None


def _weight_gradient(grad: Tensor, inputs: Tensor) -> Tensor:
    rows = grad.reshape(-1, grad.shape[-1])
    return rows.T @ inputs.reshape(len(rows), -1)
