"""Every attempt at a stage, in `ledger.jsonl`: written before it starts, completed with its outcome (F3).

The ledger and the configuration are all that a retry's settings follow from, so they survive the death of any process.
An attempt without outcome is one whose process was lost in it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlhf_core.data.events import record_event
from rlhf_core.data.json_lines import append_json_line, read_json_lines
from rlhf_core.data.store import RunFolder
from rlhf_core.errors import DataError, OrchestratorLost
from rlhf_core.recovery.classify import HEALED_BY_A_RETRY, ErrorClass, classify

Outcome = Literal["ok", "error", "lost", "interrupted"]
LAST_STAGE = "update"
"""The stage whose end finishes an iteration: its checkpoint is saved."""


class Attempt(BaseModel):
    """One attempt at a stage. `outcome` is None while it runs, or when its process was lost and nobody noticed."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    attempt: int = Field(description="number in the run, from 1")
    stage: str
    iteration: int = Field(description="0 before the first iteration")
    step: int = Field(default=0, description="of the plan; 0: nothing failed before")
    changes: dict[str, Any] = Field(default_factory=dict[str, Any], description="setting → value in force")
    words: str = Field(default="", description="the plan in words")
    pid: int = 0
    epoch: int = Field(default=0, description="of the run's lock: which process of the run")
    time: str = ""
    outcome: Outcome | None = None
    error_class: ErrorClass | None = None
    error: str = Field(default="", description="type of the exception")
    message: str = ""
    gave_up: bool = Field(default=False, description="no further attempt was allowed")

    @property
    def is_progress(self) -> bool:
        """Whether it finished an iteration."""
        return self.stage == LAST_STAGE and self.outcome == "ok"

    @property
    def is_retryable_failure(self) -> bool:
        """Whether it failed with what a retry may heal."""
        return self.outcome == "error" and self.error_class in HEALED_BY_A_RETRY


def read_attempts(folder: RunFolder) -> tuple[Attempt, ...]:
    """All attempts in order; a last line that a kill cut short is left out.

    Raises:
        DataError: a line is malformed.
    """
    found: dict[int, dict[str, Any]] = {}
    for row in read_json_lines(folder.ledger):
        facts = {name: value for name, value in row.items() if name != "ended"}
        found.setdefault(int(row.get("attempt", 0)), {}).update(facts)
    try:
        return tuple(Attempt.model_validate(facts) for facts in found.values())
    except ValidationError as error:
        raise DataError(
            f"{folder.ledger} is not a ledger of attempts: {error}. Restore the file, or start under another name."
        ) from error


def start_attempt(
    folder: RunFolder, earlier: Sequence[Attempt], *, stage: str, iteration: int, epoch: int, plan: Mapping[str, Any]
) -> Attempt:
    """Write that an attempt is about to start; it is on the disk when this returns.

    Args:
        folder: of the run.
        earlier: what `read_attempts` gave.
        stage: name of the stage.
        iteration: 0 before the first.
        epoch: of the run's lock.
        plan: `step`, `changes` and `words` of what is in force.
    """
    attempt = Attempt(
        attempt=max((one.attempt for one in earlier), default=0) + 1,
        stage=stage,
        iteration=iteration,
        pid=os.getpid(),
        epoch=epoch,
        time=_now(),
        **plan,
    )
    append_json_line(folder.ledger, attempt.model_dump(mode="json", include=_STARTED))
    return attempt


def end_attempt(folder: RunFolder, attempt: Attempt, outcome: Outcome) -> Attempt:
    """Complete an attempt that did not fail by an error."""
    return _complete(folder, attempt, {"outcome": outcome})


def fail_attempt(folder: RunFolder, attempt: Attempt, error: BaseException, *, gave_up: bool) -> Attempt:
    """Complete an attempt with the error that ended it."""
    facts = {
        "outcome": "error",
        "error_class": classify(error),
        "error": type(error).__name__,
        "message": str(error),
        "gave_up": gave_up,
    }
    return _complete(folder, attempt, facts)


def attempts_near(attempts: Sequence[Attempt], stage: str, iteration: int) -> tuple[Attempt, ...]:
    """Attempts at this stage and iteration, since the run was last given up."""
    near = [one for one in attempts if (one.stage, one.iteration) == (stage, iteration)]
    after = max((index + 1 for index, one in enumerate(near) if one.gave_up), default=0)
    return tuple(near[after:])


def failures_in_a_row(attempts: Sequence[Attempt], stage: str, iteration: int) -> int:
    """Failures of a stage near one step since it last ended well; lost and interrupted attempts are not counted."""
    count = 0
    for one in attempts_near(attempts, stage, iteration):
        count = 0 if one.outcome == "ok" else count + one.is_retryable_failure
    return count


def lost_without_progress(attempts: Sequence[Attempt]) -> tuple[Attempt, ...]:
    """Attempts in which the leading process was lost since an iteration was last finished."""
    since = max((index + 1 for index, one in enumerate(attempts) if one.is_progress), default=0)
    return tuple(one for one in attempts[since:] if one.outcome in (None, "lost"))


def note_lost(folder: RunFolder, *, max_lost: int) -> tuple[Attempt, ...]:
    """Complete attempts that an earlier process left without outcome, each with an event; called by the run's owner.

    Raises:
        OrchestratorLost: this happened more than `max_lost` times without an iteration finished in between.
    """
    found = tuple(one for one in read_attempts(folder) if one.outcome is None)
    for one in found:
        record_event(
            folder,
            "orchestrator_lost",
            f"process {one.pid} was lost in attempt {one.attempt}, {describe(one)}; going on from what is saved.",
            iteration=one.iteration or None,
            attempt=one.attempt,
            stage=one.stage,
        )
        end_attempt(folder, one, "lost")
    lost = lost_without_progress(read_attempts(folder))
    if len(lost) > max_lost:
        raise OrchestratorLost(
            f"{folder.path}: the process that leads the run was lost {len(lost)} times without finishing an "
            f"iteration, the last time in {describe(lost[-1])}; recovery.max_lost={max_lost} allows no more. "
            "Look for what kills it (memory of the machine, a time limit of the scheduler), then "
            f"`rlhf resume {folder.path} --set recovery.max_lost={2 * len(lost)}`."
        )
    return found


def notable(attempts: Sequence[Attempt]) -> tuple[Attempt, ...]:
    """What people want to see: attempts that did not end well, and those that retried something."""
    return tuple(one for one in attempts if one.outcome in ("error", "lost", "interrupted") or one.step)


def describe(attempt: Attempt) -> str:
    """Stage and iteration in words."""
    return f"{attempt.stage} of iteration {attempt.iteration}" if attempt.iteration else attempt.stage


_STARTED = {"attempt", "stage", "iteration", "step", "changes", "words", "pid", "epoch", "time"}


def _complete(folder: RunFolder, attempt: Attempt, facts: Mapping[str, Any]) -> Attempt:
    append_json_line(folder.ledger, {"attempt": attempt.attempt, **facts, "ended": _now()})
    return attempt.model_copy(update=dict(facts))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
