"""In which precision matrix products really run: what `model.autocast` asks for, where the processor can do it."""

from __future__ import annotations

from typing import Literal

import torch

from rlhf_core.config.models import ComputeConfig, ModelConfig
from rlhf_core.numerics import head_matmul

Autocast = Literal["off", "bfloat16"]


def effective_autocast(device: torch.device | str, wanted: Autocast) -> Autocast:
    """Return `wanted`, or `off` on a CPU that only emulates bfloat16: float32 is faster there, and more exact."""
    return "off" if wanted == "bfloat16" and emulates_bfloat16(device) else wanted


def autocast_context(device: torch.device | str, wanted: Autocast) -> torch.autocast:
    """Return the context for a model's products on `device`; see `effective_autocast`."""
    is_on = effective_autocast(device, wanted) == "bfloat16"
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=is_on)


def emulates_bfloat16(device: torch.device | str) -> bool:
    """Whether the device is a CPU without bfloat16 instructions."""
    return torch.device(device).type == "cpu" and not head_matmul.cpu_multiplies_bfloat16()


def precision_warnings(model: ModelConfig, compute: ComputeConfig) -> dict[str, str]:
    """Return what becomes of bfloat16 settings on this machine, by field; nothing where it does them as asked."""
    has_gpu = compute.device != "cpu" and torch.cuda.is_available()
    if has_gpu or not emulates_bfloat16("cpu"):
        return {}
    said = {
        "autocast": "bfloat16: this CPU has no bf16 units, so float32 is used here.",
        "reference_dtype": "bfloat16: this CPU has no bf16 units and emulates the reference's products, many times "
        "slower than float32. Set it to float32 unless memory is short.",
    }
    return {f"model.{name}": message for name, message in said.items() if getattr(model, name) == "bfloat16"}
