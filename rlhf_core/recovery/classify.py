"""What kind of fault an exception is, and whether a retry can help (F3)."""

from __future__ import annotations

import errno
from typing import Literal, TypeAlias

from rlhf_core import errors

ErrorClass: TypeAlias = Literal[
    "out_of_memory",
    "non_finite",
    "kl_collapse",
    "communication_timeout",
    "worker_lost",
    "stalled",
    "damaged_checkpoint",
    "engine",
    "data",
    "configuration",
    "disk",
    "remote",
    "refused",
    "unknown",
]

_OURS: tuple[tuple[type[errors.RlhfError], ErrorClass], ...] = (
    (errors.OutOfMemory, "out_of_memory"),
    (errors.RolloutServerLost, "remote"),  # no setting of the training has to do with it
    (errors.StaleEngine, "remote"),
    (errors.WorkerLost, "worker_lost"),
    (errors.CommunicationTimeout, "communication_timeout"),
    (errors.Stalled, "stalled"),
    (errors.EngineError, "engine"),
    (errors.KlCollapse, "kl_collapse"),
    (errors.NumericsError, "non_finite"),
    (errors.CheckpointError, "damaged_checkpoint"),
    (errors.DataError, "data"),
    (errors.ConfigError, "configuration"),
    (errors.RunLocked, "refused"),
    (errors.RunFolderError, "disk"),
    (errors.RemoteScorerError, "remote"),
    (errors.GateFailed, "refused"),
    (errors.CannotLearn, "refused"),
    (errors.OrchestratorLost, "refused"),
)
"""The first that fits counts."""

_FOREIGN: dict[str, ErrorClass] = {
    "MemoryError": "out_of_memory",
    "OutOfMemoryError": "out_of_memory",  # torch's, and Ray's when its memory monitor killed a worker
    "RayActorError": "worker_lost",
    "WorkerCrashedError": "worker_lost",
    "NodeDiedError": "worker_lost",
    "GetTimeoutError": "communication_timeout",
    "DistNetworkError": "communication_timeout",
    "DistStoreError": "communication_timeout",
    "DistBackendError": "communication_timeout",
    "TimeoutError": "communication_timeout",
    "ConnectionError": "communication_timeout",
    "ValidationError": "configuration",
}
"""By the name of a class or of one of its bases: these libraries are optional, and importing them here would cost."""

_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})

HEALED_BY_A_RETRY: frozenset[ErrorClass] = frozenset(
    {
        "out_of_memory",
        "non_finite",
        "kl_collapse",
        "communication_timeout",
        "worker_lost",
        "stalled",
        "engine",
        "remote",
    }
)
ANSWERED_BY_SETTINGS: frozenset[ErrorClass] = HEALED_BY_A_RETRY - {"remote"}
"""Gentler settings may help against these; a scorer that does not answer says nothing about them."""


def classify(error: BaseException) -> ErrorClass:
    """Return the class of an exception; one that is unknown is judged by what it was raised from."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        found = _class_of(current)
        if found != "unknown":
            return found
        current = current.__cause__
    return "unknown"


def is_retryable(error: BaseException) -> bool:
    """Whether repeating the stage can help: never for data, configuration, the disk, a bug or a damaged checkpoint."""
    return classify(error) in HEALED_BY_A_RETRY


def _class_of(error: BaseException) -> ErrorClass:
    for kind, name in _OURS:
        if isinstance(error, kind):
            return name
    if isinstance(error, OSError) and error.errno in _DISK:
        return "disk"
    for kind in type(error).__mro__:
        if kind.__name__ in _FOREIGN:
            return _FOREIGN[kind.__name__]
    return "unknown"
