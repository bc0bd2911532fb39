"""Statistics over all ranks: what one rank knows, summed by a function that the caller gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

AllReduce = Callable[[Tensor], Tensor]
"""Sums a tensor over ranks and returns the sum; every rank must call it equally often, with equal shapes."""

EPSILON = 1e-8
"""Floor of every standard deviation that is divided by."""


def identity(tensor: Tensor) -> Tensor:
    """The `AllReduce` of a single rank."""
    return tensor


@dataclass(frozen=True)
class Ranks:
    """Which rank this is, of how many, and how they add up."""

    number: int = 0
    count: int = 1
    all_reduce: AllReduce = identity

    def maximum(self, value: Float[Tensor, ""]) -> float:
        """The largest of all ranks' values; every rank must call it."""
        places = torch.zeros(self.count, dtype=torch.float64, device=value.device)
        places[self.number] = value.double()
        return float(self.all_reduce(places).max())


SOLO = Ranks()
"""The only rank."""


@dataclass(frozen=True)
class Moments:
    """Global count, mean, sum of squared deviations from that mean, in the units of the values."""

    count: int
    mean: float
    sum_squared_deviations: float

    @property
    def std(self) -> float:
        """Population standard deviation; 0 for no value or one."""
        return (self.sum_squared_deviations / self.count) ** 0.5 if self.count else 0.0

    @property
    def is_constant(self) -> bool:
        """Whether the values do not differ beyond the epsilon of the division (N04)."""
        return self.std <= EPSILON


def global_moments(
    values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], all_reduce: AllReduce = identity
) -> Moments:
    """Return the moments of the values under the mask over all ranks.

    Two passes in float64: the sum of squared deviations is taken from the global mean, so that it does not cancel
    where the mean is large beside the spread. Padding and excluded values do not change a single bit. Calls
    `all_reduce` twice whatever the mask holds.
    """
    kept = values.detach()[mask].to(torch.float64)
    total, count = all_reduce(torch.stack([kept.sum(), mask.sum().to(torch.float64)])).tolist()
    mean = total / count if count else 0.0
    squares = all_reduce((kept - mean).square().sum().reshape(1)).item()
    return Moments(count=int(count), mean=mean, sum_squared_deviations=squares)
