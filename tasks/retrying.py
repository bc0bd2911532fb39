"""What every stage's task shares: how it is retried, and how its engines are dropped before a retry."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from prefect import Task, get_run_logger
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun

from rlhf_core.errors import RlhfError
from rlhf_core.reporting.timing import record_timing
from rlhf_core.runtime import Runtime, open_runtime
from tasks.run import Run

P = ParamSpec("P")
R = TypeVar("R")


def is_transient(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Retry what time or a fresh engine can heal; a bug, bad data or a bad config fails at once."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, RlhfError) and error.transient


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
                retries=run.recovery.retries, retry_delay_seconds=list(run.recovery.delays_seconds)
            )
            return configured(run, *args, **kwargs)

        return call

    return decorate


@contextmanager
def engines(run: Run, stage: str, iteration: int = 0) -> Generator[Runtime]:
    """The run's runtime, with the stage's time recorded.

    After a transient error the engines are dropped, so that the retry builds them anew from the last checkpoint.
    """
    runtime = open_runtime(run.folder)
    started = time.perf_counter()
    try:
        yield runtime
    except RlhfError as error:
        if error.transient:
            get_run_logger().warning("%s: %s The engines are built anew for the next attempt.", stage, error)
            runtime.drop()
        raise
    memory = runtime.memory.note() if runtime.config.memory.watch else None
    record_timing(runtime.folder, iteration, stage, time.perf_counter() - started, memory)
