"""Causal attention of one short sequence in bfloat16 on a CPU, as plain matrix products on blocks of queries.

PyTorch's fused kernel works at a fraction of the products' rate there: at 64 to 192 tokens, forward and backward, it
takes 1.0 to 1.9 times as long (docs/results.md). Only the inputs are kept for the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlhf_core.numerics import head_matmul

_BLOCK_TOKENS = 64
"""Queries worked on at once: their scores stay in the cache, and no product is made with keys of later blocks."""
_LONGEST = 256
"""Tokens; longer sequences are as fast or faster in the kernel (measured)."""


def is_faster(query: Float[Tensor, "1 heads tokens size"]) -> bool:
    """Whether the query is short, and attention to it would run in bfloat16 on a CPU that has units for it.

    Neighbours in a pack do not count, so that they do not change a sequence's numbers.
    """
    device = query.device.type
    dtype = head_matmul.autocast_dtype(device) or query.dtype
    is_half_on_cpu = device == "cpu" and dtype == torch.bfloat16 and head_matmul.cpu_multiplies_bfloat16()
    return is_half_on_cpu and query.shape[2] <= _LONGEST


def attention(
    query: Float[Tensor, "1 heads tokens size"],
    key: Float[Tensor, "1 groups tokens size"],
    value: Float[Tensor, "1 groups tokens size"],
    scale: float | None,
) -> Float[Tensor, "1 heads tokens size"]:
    """Return causal attention; products in bfloat16, softmax in float32.

    Args:
        query: consecutive heads share a group's keys.
        key: of the same tokens.
        value: of the same tokens.
        scale: of the scores; None is one over the root of `size`.
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    inputs = (tensor[0].to(torch.bfloat16) for tensor in (query, key, value))
    return cast(Tensor, _Attention.apply(*inputs, scale))[None]


class _Attention(torch.autograd.Function):
    """Of `[heads, tokens, size]`."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        attended = torch.empty_like(query)
        with torch.autocast("cpu", enabled=False):
            for rows, seen in _blocks(query):
                own = torch.bmm(_probabilities(query[:, rows], key[:, seen], scale), value[:, seen])
                attended[:, rows] = own.view_as(attended[:, rows])
        ctx.save_for_backward(query, key, value)
        ctx.scale = scale
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]  torch's own signature is variadic
        query, key, value = ctx.saved_tensors
        grad_query = torch.empty_like(query)
        grad_key, grad_value = (torch.zeros_like(tensor, dtype=torch.float32) for tensor in (key, value))
        with torch.autocast("cpu", enabled=False):
            for rows, seen in _blocks(query):
                parts = _gradients(query[:, rows], key[:, seen], value[:, seen], grad[:, rows], ctx.scale)
                grad_query[:, rows] = parts[0]
                grad_key[:, seen] += parts[1]
                grad_value[:, seen] += parts[2]
        return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype), None


def _blocks(query: Tensor) -> Iterator[tuple[slice, slice]]:
    """Blocks of tokens and, for each, all tokens up to the block's end."""
    for rows in head_matmul.chunks(query.shape[1], _BLOCK_TOKENS):
        yield rows, slice(0, rows.stop)


def _grouped(query: Tensor, groups: int) -> Tensor:
    """Query heads that share keys, as if they were further tokens: `[groups, heads/groups · tokens, size]`."""
    return query.reshape(groups, -1, query.shape[-1])


def _probabilities(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """`[groups, heads/groups · tokens, keys]` in bfloat16; 0 for later keys. The queries are the last keys' tokens."""
    groups, keys, _ = key.shape
    tokens = query.shape[1]
    scores = torch.bmm(_grouped(query, groups), key.transpose(1, 2)).float().mul_(scale)
    own = scores.view(groups, -1, tokens, keys)[..., keys - tokens :]
    own += torch.full((tokens, tokens), -torch.inf).triu_(1)
    return scores.softmax(dim=-1).to(query.dtype)


def _gradients(query: Tensor, key: Tensor, value: Tensor, grad: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Of one block's query, and its part of those of key and value; `grad` is `[heads, tokens, size]`."""
    groups = len(key)
    probabilities, by_group = _probabilities(query, key, scale), _grouped(grad, groups)
    grad_value = torch.bmm(probabilities.transpose(1, 2), by_group)
    wide = torch.bmm(by_group, value.transpose(1, 2)).float()
    mean = (wide * probabilities).sum(dim=-1, keepdim=True)
    grad_scores = wide.sub_(mean).mul_(probabilities).mul_(scale).to(query.dtype)
    grad_query = torch.bmm(grad_scores, key)
    grad_key = torch.bmm(grad_scores.transpose(1, 2), _grouped(query, groups))
    return grad_query.view_as(query), grad_key, grad_value
