"""Causal attention of short sequences in bfloat16 on a CPU, as plain matrix products.

PyTorch's fused kernel works at a fraction of the products' rate there, and each call costs; a training update at 127
tokens took it a fifth to a quarter more time in all (docs/results.md). Only the inputs are kept for the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlhf_core.numerics import head_matmul

_LONGEST = 128
"""Tokens; the scores of a longer sequence leave the cache, and the kernel is as fast or faster (measured)."""


def is_faster(query: Tensor, length: int) -> bool:
    """Whether attention of a sequence of that length would run in bfloat16 on a CPU with units for it, and is short.

    Its neighbours in a pack do not count, so that they do not change its numbers.
    """
    device = query.device.type
    dtype = head_matmul.autocast_dtype(device) or query.dtype
    is_half_on_cpu = device == "cpu" and dtype == torch.bfloat16 and head_matmul.cpu_multiplies_bfloat16()
    return is_half_on_cpu and length <= _LONGEST


def attention(
    query: Float[Tensor, "1 heads tokens size"],
    key: Float[Tensor, "1 groups tokens size"],
    value: Float[Tensor, "1 groups tokens size"],
    lengths: Sequence[int],
    scale: float | None,
) -> Float[Tensor, "1 tokens heads size"]:
    """Return causal attention within each sequence; products in bfloat16, softmax in float32.

    Args:
        query: of sequences that lie one after another; consecutive heads share a group's keys.
        key: of the same tokens.
        value: of the same tokens.
        lengths: of the sequences; they sum to the number of tokens.
        scale: of the scores; None is one over the root of `size`.
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    inputs = (tensor[0].to(torch.bfloat16) for tensor in (query, key, value))
    return cast(Tensor, _Attention.apply(*inputs, tuple(lengths), scale))[None]


class _Attention(torch.autograd.Function):
    """Of `[heads, tokens, size]`; gives `[tokens, heads, size]`."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, ...], scale: float) -> Tensor:
        heads, tokens, _ = query.shape
        attended = query.new_empty(tokens, heads, value.shape[-1])
        with torch.autocast("cpu", enabled=False):
            for rows in _rows(lengths):
                q, k, v = query[:, rows], key[:, rows], value[:, rows]
                own = torch.bmm(_probabilities(q, k, scale), v)
                attended[rows] = own.view(heads, -1, v.shape[-1]).transpose(0, 1)
        ctx.save_for_backward(query, key, value)
        ctx.lengths, ctx.scale = lengths, scale
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]  torch's own signature is variadic
        query, key, value = ctx.saved_tensors
        grads = (torch.empty_like(query), torch.empty_like(key), torch.empty_like(value))
        with torch.autocast("cpu", enabled=False):
            for rows in _rows(ctx.lengths):
                q, k, v = query[:, rows], key[:, rows], value[:, rows]
                own = _gradients(q, k, v, grad[rows].transpose(0, 1), ctx.scale)
                for whole, part in zip(grads, own, strict=True):
                    whole[:, rows] = part
        return *grads, None, None


def _rows(lengths: Sequence[int]) -> Iterator[slice]:
    start = 0
    for length in lengths:
        yield slice(start, start + length)
        start += length


def _grouped(query: Tensor, groups: int) -> Tensor:
    """Query heads that share keys, as if they were further tokens: `[groups, heads/groups · tokens, size]`."""
    return query.reshape(groups, -1, query.shape[-1])


def _probabilities(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """`[groups, heads/groups · tokens, tokens]` in bfloat16; 0 for keys that come later."""
    groups, tokens, _ = key.shape
    scores = torch.bmm(_grouped(query, groups), key.transpose(1, 2)).float().mul_(scale)
    by_head = scores.view(groups, -1, tokens, tokens)
    by_head += torch.full((tokens, tokens), -torch.inf).triu_(1)
    return scores.softmax(dim=-1).to(query.dtype)


def _gradients(query: Tensor, key: Tensor, value: Tensor, grad: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of one sequence's query, key and value; `grad` is `[heads, tokens, size]`."""
    groups = len(key)
    probabilities, by_group = _probabilities(query, key, scale), _grouped(grad, groups)
    grad_value = torch.bmm(probabilities.transpose(1, 2), by_group)
    wide = torch.bmm(by_group, value.transpose(1, 2)).float()
    mean = (wide * probabilities).sum(dim=-1, keepdim=True)
    grad_scores = wide.sub_(mean).mul_(probabilities).mul_(scale).to(query.dtype)
    grad_query = torch.bmm(grad_scores, key)
    grad_key = torch.bmm(grad_scores.transpose(1, 2), _grouped(query, groups))
    return grad_query.view_as(query), grad_key, grad_value
