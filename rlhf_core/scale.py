"""Memory and time of a run on many GPUs, by arithmetic alone; docs/scale.md uses it.

Nothing here is measured. Memory is in bytes and per rank; GiB is 2**30 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
BF16_BYTES = 2
# float32 master weights and Adam's two moments: K = 12 of Rajbhandari et al. 2020, arXiv:1910.02054, section 3.1.
OPTIMIZER_BYTES = 12


@dataclass(frozen=True)
class Shape:
    """A dense decoder: what its sizes follow from."""

    parameters: float
    layers: int
    hidden: int
    key_value_heads: int
    head_dim: int
    vocabulary: int


def trained_bytes(parameters: float, ranks: int, zero_stage: int, *, is_optimizer_offloaded: bool = False) -> float:
    """Weights and gradients in bfloat16 and Adam in float32 of a trained model on one GPU.

    Source: arXiv:1910.02054, figure 1: stage 1 shares the optimizer's states, 2 the gradients too, 3 the weights too.

    Raises:
        ValueError: no such stage, or fewer than one rank.
    """
    if zero_stage not in (0, 1, 2, 3) or ranks < 1:
        raise ValueError(f"zero_stage={zero_stage}, ranks={ranks}: the stage is 0 to 3, the ranks at least 1.")
    optimizer = 0 if is_optimizer_offloaded else OPTIMIZER_BYTES / (ranks if zero_stage >= 1 else 1)
    gradients = BF16_BYTES / (ranks if zero_stage >= 2 else 1)
    weights = BF16_BYTES / (ranks if zero_stage == 3 else 1)
    return parameters * (weights + gradients + optimizer)


def frozen_bytes(parameters: float, ranks: int) -> float:
    """Weights in bfloat16 of a model that only scores, shared over `ranks` (1: whole on each)."""
    return BF16_BYTES * parameters / ranks


def activation_bytes(shape: Shape, tokens: int, *, logit_chunk_tokens: int) -> float:
    """With gradient checkpointing: each layer's input, one layer recomputed, and the float32 logits of one chunk.

    Source: Korthikanti et al. 2022, arXiv:2205.05198: 2 s b h bytes a layer under full recomputation, and
    34 s b h for the layer at hand (their 5 a s / h term is absent: fused attention stores no score matrix).
    """
    per_token = shape.hidden * (2 * shape.layers + 34)
    # logits and their gradient, 4 bytes each
    return float(per_token * tokens + 8 * shape.vocabulary * logit_chunk_tokens)


def key_value_bytes(shape: Shape, tokens: float) -> float:
    """Keys and values of `tokens` in bfloat16, over all layers."""
    return 2.0 * BF16_BYTES * shape.layers * shape.key_value_heads * shape.head_dim * tokens


def training_seconds(parameters: float, tokens: float, gpus: int, *, flops_per_gpu: float, utilisation: float) -> float:
    """One pass over `tokens`, with recomputation: 8 FLOPs per parameter and token (2 forward, 2 again, 4 backward).

    Source: Narayanan et al. 2021, arXiv:2104.04473, equation 3, without attention's and the head's terms.
    """
    return 8 * parameters * tokens / (gpus * flops_per_gpu * utilisation)


def scoring_seconds(parameters: float, tokens: float, gpus: int, *, flops_per_gpu: float, utilisation: float) -> float:
    """One forward pass over `tokens`: 2 FLOPs per parameter and token."""
    return 2 * parameters * tokens / (gpus * flops_per_gpu * utilisation)


def decode_step_seconds(
    shape: Shape, sequences: float, mean_tokens: float, gpus: int, *, bytes_per_second: float, utilisation: float
) -> float:
    """One token for each of `sequences` of one engine over `gpus`: weights and cache are read once."""
    read = frozen_bytes(shape.parameters, 1) + key_value_bytes(shape, sequences * mean_tokens)
    return read / (gpus * bytes_per_second * utilisation)


def transfer_seconds(amount_bytes: float, *, bytes_per_second: float) -> float:
    """An amount over a line or to a disk."""
    return amount_bytes / bytes_per_second
