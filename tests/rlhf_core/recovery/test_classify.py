"""Each kind of fault has its class, and only what a retry can heal is retried."""

from __future__ import annotations

import errno

import pydantic
import pytest
import torch

from rlhf_core import errors
from rlhf_core.config.recovery import RecoveryConfig
from rlhf_core.recovery.classify import classify, is_retryable

OURS = {
    errors.OutOfMemory: "out_of_memory",
    errors.NumericsError: "non_finite",
    errors.KlCollapse: "kl_collapse",
    errors.CommunicationTimeout: "communication_timeout",
    errors.WorkerLost: "worker_lost",
    errors.RolloutServerLost: "remote",
    errors.StaleEngine: "remote",
    errors.Stalled: "stalled",
    errors.EngineError: "engine",
    errors.CheckpointError: "damaged_checkpoint",
    errors.DataError: "data",
    errors.ValidationFailed: "data",
    errors.ConfigError: "configuration",
    errors.RunFolderError: "disk",
    errors.RunLocked: "refused",
    errors.RemoteScorerError: "remote",
    errors.GateFailed: "refused",
    errors.CannotLearn: "refused",
    errors.OrchestratorLost: "refused",
}
RETRIED = {
    "out_of_memory",
    "non_finite",
    "kl_collapse",
    "communication_timeout",
    "worker_lost",
    "stalled",
    "engine",
    "remote",
}


@pytest.mark.parametrize(("kind", "expected"), OURS.items(), ids=lambda value: getattr(value, "__name__", value))
def test_our_errors_are_classed_and_retried_by_their_class(kind, expected):
    assert classify(kind("what, where, what to do")) == expected
    assert is_retryable(kind("what")) == (expected in RETRIED)


def test_what_an_error_says_of_itself_agrees_with_its_class():
    for kind in OURS:
        assert kind.transient == is_retryable(kind("what"))


class RayActorError(Exception):
    """As Ray names it."""


class ActorDiedError(RayActorError):
    """As Ray derives it."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (ActorDiedError(), "worker_lost"),
        (torch.distributed.DistNetworkError("timed out"), "communication_timeout"),
        (TimeoutError(), "communication_timeout"),
        (ConnectionResetError(), "communication_timeout"),
        (OSError(errno.ENOSPC, "no space left"), "disk"),
        (FileNotFoundError("x"), "unknown"),
        (ValueError("a bug"), "unknown"),
        (KeyboardInterrupt(), "unknown"),
    ],
    ids=repr,
)
def test_errors_of_libraries_are_known_by_their_names(error, expected):
    assert classify(error) == expected


def test_wrong_settings_are_no_bug():
    with pytest.raises(pydantic.ValidationError) as wrong:
        RecoveryConfig.model_validate({"retries": -1})
    assert classify(wrong.value) == "configuration"


def test_an_unknown_error_is_what_it_was_raised_from():
    error = RuntimeError("the stage failed")
    error.__cause__ = errors.WorkerLost("rank 1 is gone")
    assert classify(error) == "worker_lost"
    ours = errors.DataError("a table is empty")
    ours.__cause__ = errors.WorkerLost("rank 1 is gone")
    assert classify(ours) == "data"
    circular = RuntimeError("a")
    circular.__cause__ = circular
    assert classify(circular) == "unknown"
