"""How the language-model head is multiplied: in which dtype, and in how large pieces."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

_BLOCK_ELEMENTS = 2**21
"""Logits worked on at once: 8 MiB of float32 stay in the cache, which made softmax five times faster than on 50 MiB."""


@cache
def cpu_multiplies_bfloat16() -> bool:
    """Whether this CPU has bfloat16 instructions; without them its matmuls are 4 to 140 times slower (measured)."""
    return any(flag.endswith("bf16") and present is True for flag, present in torch.cpu.get_capabilities().items())


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """The dtype of products under autocast; None outside of it."""
    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None


def matmul_dtype(hidden: Tensor, head_weight: Tensor) -> torch.dtype:
    """Return the dtype of the head's matmul: autocast's, or the inputs' common one.

    A half precision that the CPU can only emulate becomes float32, which is faster there and more exact.
    """
    device = hidden.device.type
    wanted = None if hidden.dtype == torch.float64 else autocast_dtype(device)
    dtype = wanted or torch.promote_types(hidden.dtype, head_weight.dtype)
    is_half = dtype in (torch.bfloat16, torch.float16)
    return torch.float32 if is_half and device == "cpu" and not cpu_multiplies_bfloat16() else dtype


def softmax_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of softmax and results: float32, or float64 for float64 inputs."""
    return torch.promote_types(dtype, torch.float32)


def chunks(rows: int, size: int) -> Iterator[slice]:
    """Cut `rows` into slices of at most `size`."""
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def cache_blocks(rows: int, vocab: int) -> Iterator[slice]:
    """Cut `rows` of logits into slices that fit a CPU's cache."""
    return chunks(rows, max(1, _BLOCK_ELEMENTS // max(vocab, 1)))
