"""Mean and spread of a stream, without keeping it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.numerics.reductions import AllReduce, global_moments, identity


@dataclass(frozen=True)
class RunningStats:
    """Count, mean and sum of squared deviations; float64.

    Source: Chan, Golub, LeVeque 1979, the pairwise form of Welford's recurrence, which does not cancel.
    """

    count: int = 0
    mean: float = 0.0
    sum_squared_deviations: float = 0.0

    @property
    def std(self) -> float:
        """Population standard deviation; 0 for no value or one."""
        return (self.sum_squared_deviations / self.count) ** 0.5 if self.count else 0.0

    def merged(self, other: RunningStats) -> RunningStats:
        """Return the statistics of both streams together."""
        count = self.count + other.count
        if not count:
            return self
        delta = other.mean - self.mean
        squares = self.sum_squared_deviations + other.sum_squared_deviations
        return RunningStats(
            count=count,
            mean=self.mean + delta * other.count / count,
            sum_squared_deviations=squares + delta * delta * self.count * other.count / count,
        )

    def including(
        self, values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], all_reduce: AllReduce = identity
    ) -> RunningStats:
        """Return the statistics with the values under the mask of all ranks added; every rank gets the same."""
        batch = global_moments(values, mask, all_reduce)
        return self.merged(RunningStats(batch.count, batch.mean, batch.sum_squared_deviations))

    def state_dict(self) -> dict[str, int | float]:
        return asdict(self)

    @classmethod
    def from_state_dict(cls, state: Mapping[str, int | float]) -> RunningStats:
        return cls(int(state["count"]), float(state["mean"]), float(state["sum_squared_deviations"]))
