"""Every error that this project raises on purpose.

    RlhfError
    ├── ConfigError            a setting is wrong; never retried
    ├── DataError              input data are missing or malformed; never retried
    │   └── ValidationFailed   a great-expectations suite failed on a border
    ├── NumericsError          a NaN or infinity where none may be; healed by going back to the last checkpoint
    │   └── KlCollapse         the policy ran away from its reference in one update
    ├── GateFailed             a stage refuses to go on (reward model not good enough)
    ├── RunFolderError         the run folder cannot be used (read-only, full, name in use)
    │   └── RunLocked          another process owns the run
    ├── CheckpointError        a checkpoint is damaged, missing or foreign
    ├── EngineError            an engine broke; a fresh one may work
    │   ├── OutOfMemory        memory ran out
    │   ├── WorkerLost         a training rank or its machine is gone
    │   │   └── RolloutServerLost  no rollout server answers; time or an operator may heal it
    │   ├── StaleEngine        a rollout server does not answer as the policy does; nothing was sampled from it
    │   ├── CommunicationTimeout  ranks waited for each other too long
    │   └── Stalled            no step was taken for too long
    ├── RemoteScorerError      a remote scorer did not answer; time may heal it
    ├── ServerError            the Prefect server cannot be reached
    ├── CannotLearn            the run cannot succeed as it stands (no valid samples, all cut)
    ├── NotificationFailed     a test message did not go through; a run's own messages never raise
    └── OrchestratorLost       the process that leads the run was lost too often without progress

`transient` says whether a retry can help. `exit_code` is what the command line returns. A damaged checkpoint is no
matter of a retry, which would read the same one: the flow goes back to an older one.
"""

from __future__ import annotations

from typing import ClassVar


class RlhfError(Exception):
    """Base of all. The message says what is wrong, where, and what to do."""

    transient: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1


class ConfigError(RlhfError):
    exit_code = 2


class DataError(RlhfError):
    exit_code = 3


class ValidationFailed(DataError):
    pass


class NumericsError(RlhfError):
    transient = True
    exit_code = 4


class KlCollapse(NumericsError):
    pass


class GateFailed(RlhfError):
    exit_code = 5


class RunFolderError(RlhfError):
    exit_code = 6


class RunLocked(RunFolderError):
    pass


class CheckpointError(RlhfError):
    exit_code = 7


class EngineError(RlhfError):
    transient = True
    exit_code = 8


class OutOfMemory(EngineError):
    pass


class WorkerLost(EngineError):
    pass


class RolloutServerLost(WorkerLost):
    pass


class StaleEngine(EngineError):
    pass


class CommunicationTimeout(EngineError):
    pass


class Stalled(EngineError):
    pass


class RemoteScorerError(RlhfError):
    transient = True
    exit_code = 9


class ServerError(RlhfError):
    exit_code = 10


class CannotLearn(RlhfError):
    exit_code = 11


class OrchestratorLost(RlhfError):
    exit_code = 12


class NotificationFailed(RlhfError):
    exit_code = 13
