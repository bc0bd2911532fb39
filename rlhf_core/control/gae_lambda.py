"""Policies for λ of generalized advantage estimation (A4); a fixed λ is a plain number and needs none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rlhf_core.errors import ConfigError

STAGED_VALUES = (0.9, 0.95, 0.98)


def gae_lambda_by_length(
    response_lengths: Int[Tensor, " batch"],
    *,
    short_tokens: int = 128,
    long_tokens: int = 512,
    short_lambda: float = 0.95,
    long_lambda: float = 0.85,
) -> Float[Tensor, " batch"]:
    """Return λ of each response, float64: `short_lambda` to `short_tokens`, then linear to `long_lambda`.

    A long response sums more rewards, so its returns are noisier; a smaller λ trusts the critic more there.

    Args:
        response_lengths: tokens of each response, EOS included.
        short_tokens: length up to which λ is the first value.
        long_tokens: length from which λ is the second value; above `short_tokens`.
        short_lambda: in [0, 1].
        long_lambda: in [0, 1].

    Raises:
        ConfigError: the lengths are not in order, or a λ lies outside [0, 1].
    """
    if not 0 <= short_tokens < long_tokens:
        raise ConfigError(
            f"gae_lambda by length needs 0 ≤ short_tokens < long_tokens, such as 128 and 512; got {short_tokens} and "
            f"{long_tokens}."
        )
    _require_lambdas((short_lambda, long_lambda))
    progress = (response_lengths.to(torch.float64) - short_tokens) / (long_tokens - short_tokens)
    return short_lambda + (long_lambda - short_lambda) * progress.clamp(0.0, 1.0)


def staged_gae_lambda(iteration: int, *, borders: Sequence[int], values: Sequence[float] = STAGED_VALUES) -> float:
    """Return λ of an iteration: the first value before the first border, the next from it on, and so forth.

    Args:
        iteration: from 0.
        borders: first iteration of each further stage, rising; one fewer than values.
        values: λ of each stage, in [0, 1]. A rising λ trusts the critic less as its bias comes to bind.

    Raises:
        ConfigError: borders do not rise or do not fit the values, or a λ lies outside [0, 1].
    """
    if len(borders) != len(values) - 1 or list(borders) != sorted(set(borders)):
        raise ConfigError(
            f"staged gae_lambda has values {list(values)} and borders {list(borders)}. Give {max(0, len(values) - 1)} "
            "rising iterations at which the next value starts, such as 50, 100 for three values."
        )
    _require_lambdas(values)
    return values[sum(iteration >= border for border in borders)]


def _require_lambdas(values: Sequence[float]) -> None:
    bad = [value for value in values if not 0 <= value <= 1]
    if bad:
        raise ConfigError(f"gae_lambda must lie within [0, 1], such as 0.95; got {bad}.")
