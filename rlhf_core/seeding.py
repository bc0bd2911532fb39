"""Seeds (F6, G4): everything random follows from the run's seed and names, never from order or batch size."""

from __future__ import annotations

import hashlib
import json
import os
import random

import numpy as np
import torch

_BITS = 63
"""A seed fits a signed 64-bit column."""


def derive_seed(run_seed: int, *names: str | int) -> int:
    """A seed in [0, 2**63) that depends on the run's seed and the names alone, the same on every platform."""
    digest = hashlib.sha256(json.dumps([run_seed, *names], ensure_ascii=True).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - _BITS)


def response_seed(run_seed: int, prompt_id: str, iteration: int, sample_index: int, attempt: int = 1) -> int:
    """The seed of one response; `attempt` counts from 1 and changes only where a rejected response is drawn anew."""
    return derive_seed(run_seed, "response", prompt_id, iteration, sample_index, attempt)


def seed_everything(seed: int, *, deterministic: bool) -> None:
    """Seed python, numpy, torch and CUDA.

    Args:
        seed: the run's seed.
        deterministic: also take torch's deterministic kernels; an operation that has none only warns (P13).
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = deterministic
