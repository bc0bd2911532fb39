"""Linear layers with their weights laid out for products of few rows, on a CPU in float32 (section 15, G4).

oneDNN's layout makes the products of a decoding step faster, the head's most of all. And there a row's result does not
depend on how many rows stand beside it, with one thread to the bit; plain products of fewer than ten rows choose among
kernels by their number. That makes a response the same in any batch.

Weights change in place between calls, in ways that leave their address and their version counter as they were
(`.data`, ZeRO-3's gathering). So the copy is made anew for each call and never kept: a tenth of a second for 45 million
weights, and their bytes once more while responses are sampled, when there are neither gradients nor activations.
"""

from __future__ import annotations

import platform
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from rlhf_core.engines.memory import memory_errors
from rlhf_core.models.lean_layers import is_lean_linear

_LAID_OUT_FOR_ROWS = 32
"""The layout for a single row is another one, with other results."""


def can_pack() -> bool:
    """Whether this build and processor have the layout."""
    return platform.machine() in ("x86_64", "AMD64") and bool(torch.backends.mkldnn.is_available())


@contextmanager
def packed_products(model: Any) -> Generator[None]:
    """Within, the model's float32 linear layers on a CPU multiply packed copies of the weights they have on entry.

    Not for training: a gradient does not pass. Outside autocast: in bfloat16 the weights stay as they are.

    Raises:
        OutOfMemory: no room for the copies.
    """
    device = next(iter(model.parameters())).device
    if device.type != "cpu" or torch.is_autocast_enabled("cpu") or not can_pack():
        yield
        return
    replaced: list[tuple[torch.nn.Linear, Any]] = []
    try:
        with memory_errors("copying the weights for generation"):
            for module in model.modules():
                if type(module) is torch.nn.Linear and _is_packable(module):
                    packed = torch.ops.mkldnn._reorder_linear_weight(module.weight.detach(), _LAID_OUT_FOR_ROWS)
                    replaced.append((module, vars(module).get("forward")))
                    module.forward = partial(_product, packed, module.bias)
        yield
    finally:
        for module, before in replaced:
            if before is None:
                del module.forward
            else:
                module.forward = before


def _is_packable(module: torch.nn.Linear) -> bool:
    is_ours_or_torchs = "forward" not in vars(module) or is_lean_linear(module)
    return module.weight.dtype == torch.float32 and is_ours_or_torchs


def _product(packed: Tensor, bias: Tensor | None, input: Tensor) -> Tensor:
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise(input, packed, bias, "none", [], ""))
