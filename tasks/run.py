"""What the tasks of a run are told about it."""

from __future__ import annotations

from pathlib import Path

from rlhf_core.config.run import RecoveryConfig, RunConfig
from rlhf_core.data.refs import Ref


class Run(Ref):
    """A prepared run: its folder and the few settings by which the flow steers. All else is read from the folder."""

    name: str
    folder: Path
    rounds: int
    iterations_per_round: int
    recovery: RecoveryConfig

    @classmethod
    def of(cls, config: RunConfig, folder: Path) -> Run:
        return cls(
            name=config.name,
            folder=folder,
            rounds=config.rounds,
            iterations_per_round=config.iterations_per_round,
            recovery=config.recovery,
        )

    @property
    def iterations(self) -> int:
        return self.rounds * self.iterations_per_round

    def iterations_of(self, round_number: int) -> range:
        """Numbers of a round's iterations; both count from 1."""
        first = (round_number - 1) * self.iterations_per_round + 1
        return range(first, first + self.iterations_per_round)


class RunOutcome(Ref):
    """How a run ended and where its results lie."""

    folder: Path
    report: Path
    best_policy: Path
    best_step: int
    iterations: int
