"""Gaussian noise on logits, so that early rollouts try more than the policy alone would (P4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


def explored_logits(
    logits: Float[Tensor, "rows vocab"], seeds: Sequence[int], place: int, noise_std: float
) -> Float[Tensor, "rows vocab"]:
    """Return the logits in float32 with noise on each; unchanged, in their own dtype, where `noise_std` is 0.

    Args:
        logits: of the next token of each row.
        seeds: of the rows' requests; a row's noise depends on its seed and the place alone (G4).
        place: of the next token in its response, from 0.
        noise_std: standard deviation.
    """
    if not noise_std:
        return logits
    noise = np.stack([standard_noise(seed, place, logits.shape[1]) for seed in seeds])
    return logits.float() + noise_std * torch.from_numpy(noise).to(logits.device)


def standard_noise(seed: int, place: int, count: int) -> np.ndarray:
    """Return `[count]` float32 normals of a stream that is apart from the one that draws the request's tokens."""
    stream = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(place,)))
    return np.random.Generator(stream).standard_normal(count, dtype=np.float32)
