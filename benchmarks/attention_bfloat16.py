"""Causal attention in bfloat16 on a CPU: PyTorch's fused kernel against plain products.

    python benchmarks/attention_bfloat16.py --threads 2

One sequence a call, in turns, medians; forward alone, and forward with backward. Above 1 the products are faster.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from rlhf_core.models import bfloat16_attention

SHAPES = {"9 heads, 3 groups": (9, 3), "32 heads, 8 groups": (32, 8)}
LENGTHS = (32, 64, 128, 192, 256, 512, 1024, 2048)
SIZE = 64


def main() -> None:
    """Print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("| heads | tokens | forward: kernel, ms | ours | × | with backward: kernel, ms | ours | × |")
    print("|---|---|---|---|---|---|---|---|")
    for name, (heads, groups) in SHAPES.items():
        for tokens in LENGTHS:
            cells = [f"{value:.2f}" for value in row(heads, groups, tokens, options.repeats)]
            print(f"| {name} | {tokens} | " + " | ".join(cells) + " |", flush=True)


def row(heads: int, groups: int, tokens: int, repeats: int) -> list[float]:
    """Milliseconds of kernel and products and their ratio: forward, then forward with backward."""
    query, key, value = (torch.randn(1, count, tokens, SIZE).bfloat16() for count in (heads, groups, groups))
    inputs = [tensor.requires_grad_() for tensor in (query, key, value)]
    direction = torch.randn(1, heads, tokens, SIZE).bfloat16()

    def kernel() -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    def ours() -> Tensor:
        return bfloat16_attention.attention(query, key, value, (tokens,), None).transpose(1, 2)

    def trained(attend: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(attend(), inputs, direction)

    found: list[float] = []
    with torch.no_grad():
        found += in_turns([kernel, ours], repeats)
    found += in_turns([trained(kernel), trained(ours)], repeats)
    return [found[0], found[1], found[0] / found[1], found[2], found[3], found[2] / found[3]]


def in_turns(jobs: list[Callable[[], object]], repeats: int) -> list[float]:
    """Median milliseconds of each job."""
    times: list[list[float]] = [[] for _ in jobs]
    for number in range(repeats + 2):
        for job, taken in zip(jobs, times, strict=True):
            started = time.perf_counter()
            job()
            if number >= 2:
                taken.append(1e3 * (time.perf_counter() - started))
    return [statistics.median(taken) for taken in times]


if __name__ == "__main__":
    main()
