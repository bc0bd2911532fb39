"""What every stage's task shares: how it is retried, with which settings, and what the ledger keeps of each attempt."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from prefect import Task, get_run_logger
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.runtime import task_run

from rlhf_core.data.events import record_event
from rlhf_core.recovery.classify import is_retryable
from rlhf_core.recovery.ledger import (
    Attempt,
    describe,
    end_attempt,
    fail_attempt,
    note_lost,
    read_attempts,
    start_attempt,
)
from rlhf_core.recovery.plan import is_last, plan, steps_taken
from rlhf_core.reporting.timing import record_timing
from rlhf_core.runtime import Runtime, open_runtime
from tasks.artifacts import publish_attempts
from tasks.notify import notify_retry
from tasks.run import Run

P = ParamSpec("P")
R = TypeVar("R")

_LAST = "is_last_attempt"
"""Mark on an error after which the ledger allows no further attempt: Prefect counts those of this process alone."""


def is_transient(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Retry what time, a fresh engine or gentler settings can heal, as often as the ledger allows.

    A bug, bad data, a bad configuration or a full disk fails at once.
    """
    error = state.result(raise_on_failure=False)
    if not isinstance(error, BaseException) or not is_retryable(error):
        return False
    return not vars(error).get(_LAST)


def stage_task(*, run_name: str) -> Callable[[Callable[Concatenate[Run, P], R]], Callable[Concatenate[Run, P], R]]:
    """Make a function of a `Run` a Prefect task that is retried as the run's `recovery` says.

    `NO_CACHE`: the stage's manifest in the run folder decides whether a stored result serves again. Prefect's default
    key would hash the task's own lines, not the core code they call.

    Args:
        run_name: name of the task's runs in the UI; `{argument}` stands for an argument's value.
    """

    def decorate(function: Callable[Concatenate[Run, P], R]) -> Callable[Concatenate[Run, P], R]:
        stage = Task(function, task_run_name=run_name, cache_policy=NO_CACHE, retry_condition_fn=is_transient)

        @functools.wraps(function)
        def call(run: Run, *args: P.args, **kwargs: P.kwargs) -> R:
            configured = stage.with_options(
                retries=run.recovery.retries,
                retry_delay_seconds=list(run.recovery.delays_seconds),
                retry_jitter_factor=run.recovery.delay_jitter,
            )
            return configured(run, *args, **kwargs)

        return call

    return decorate


@contextmanager
def engines(run: Run, stage: str, iteration: int = 0) -> Generator[Runtime]:
    """The run's runtime with the settings that the ledger asks for; the attempt and the stage's time are recorded.

    After an error that a retry can heal the engines are dropped, so that they are built anew from the last checkpoint.
    """
    runtime = open_runtime(run.folder)
    attempt, is_last_attempt = _begin(runtime, stage, iteration)
    started = time.perf_counter()
    try:
        yield runtime
    except Exception as error:
        failed = _failed(runtime, attempt, error, is_last_attempt=is_last_attempt)
        on_failure(run, failed, _following(runtime, failed))
        raise
    except BaseException:  # a person or the scheduler stopped it in order: the process was not lost
        end_attempt(runtime.folder, attempt, "interrupted")
        raise
    end_attempt(runtime.folder, attempt, "ok")
    memory = runtime.memory.note() if runtime.config.memory.watch else None
    record_timing(runtime.folder, iteration, stage, time.perf_counter() - started, memory)
    for seconds in runtime.take_sync_seconds():
        record_timing(runtime.folder, iteration, f"{stage}: weights to the servers", seconds)


def on_failure(run: Run, failed: Attempt, following: str) -> None:
    """Tell people about one failed attempt: where, why, and in `following` what is done about it."""
    if failed.is_retryable_failure and not failed.gave_up:  # else the error itself is shown, once
        get_run_logger().warning(
            "%s failed (%s): %s Next: %s.", describe(failed), failed.error_class, failed.message, following
        )
    if task_run.id is None:  # outside a task's run nobody looks
        return
    publish_attempts(run)
    if failed.is_retryable_failure and not failed.gave_up:
        notify_retry(
            run,
            failed.attempt,
            error_class=failed.error_class or failed.error,
            message=f"{describe(failed)}: {failed.message}",
            plan_words=following,
        )


def note_lost_attempts(run: Run) -> None:
    """Write down attempts whose process was lost before this one took over the run.

    Raises:
        OrchestratorLost: it was lost too often without finishing an iteration.
    """
    runtime = open_runtime(run.folder)
    for lost in note_lost(runtime.folder, max_lost=runtime.config.recovery.max_lost):
        get_run_logger().warning("the process before this one was lost in %s", describe(lost))


def _begin(runtime: Runtime, stage: str, iteration: int) -> tuple[Attempt, bool]:
    """Adopt the plan and write the attempt down; also whether it is the last one."""
    folder, config = runtime.folder, runtime.config
    earlier = read_attempts(folder)
    chosen = plan(config, earlier, stage=stage, iteration=iteration)
    runtime.adopt(chosen)
    attempt = start_attempt(
        folder, earlier, stage=stage, iteration=iteration, epoch=runtime.lock.epoch, plan=chosen.row()
    )
    if chosen.step:
        record_event(
            folder,
            "retry",
            f"{describe(attempt)}, attempt {attempt.attempt}: {chosen.words}.",
            iteration=iteration or None,
            attempt=attempt.attempt,
            step=chosen.step,
        )
    return attempt, is_last(config, earlier, stage=stage, iteration=iteration)


def _failed(runtime: Runtime, attempt: Attempt, error: Exception, *, is_last_attempt: bool) -> Attempt:
    """Write down why an attempt failed, and drop the engines where a retry can help."""
    folder, is_healed = runtime.folder, is_retryable(error)
    gave_up = is_healed and is_last_attempt
    failed = fail_attempt(folder, attempt, error, gave_up=gave_up)
    place = {"iteration": attempt.iteration or None, "attempt": attempt.attempt}
    if is_healed:
        record_event(
            folder,
            "attempt_failed",
            f"{describe(attempt)}, attempt {attempt.attempt} failed, {failed.error_class}: {error}",
            error_class=failed.error_class,
            **place,
        )
        runtime.drop()
    if gave_up:
        vars(error)[_LAST] = True
        taken = steps_taken(read_attempts(folder), failed)
        record_event(folder, "gave_up", f"{describe(attempt)} is given up; {taken}. {failed.message}", **place)
    return failed


def _following(runtime: Runtime, failed: Attempt) -> str:
    """What comes after a failed attempt, in words."""
    if failed.gave_up:
        return "no further attempt is allowed"
    if not failed.is_retryable_failure:
        return "no retry can heal it"
    ledger = read_attempts(runtime.folder)
    return plan(runtime.config, ledger, stage=failed.stage, iteration=failed.iteration).words
