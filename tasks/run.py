"""What the tasks of a run are told about it."""

from __future__ import annotations

from pathlib import Path

from rlhf_core.config.recovery import RecoveryConfig
from rlhf_core.config.run import RunConfig
from rlhf_core.data.refs import Ref


class Run(Ref):
    """A prepared run: its folder and the few settings by which the flow steers. All else is read from the folder."""

    name: str
    folder: Path
    iterations: int
    recovery: RecoveryConfig

    @classmethod
    def of(cls, config: RunConfig, folder: Path) -> Run:
        return cls(name=config.name, folder=folder, iterations=config.iterations, recovery=config.recovery)


class RunOutcome(Ref):
    """How a run ended and where its results lie."""

    folder: Path
    report: Path
    best_policy: Path
    best_step: int
    iterations: int
