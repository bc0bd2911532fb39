"""Memory that runs out: how it shows, and work cut into batches that fit (F4)."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

from rlhf_core.errors import OutOfMemory

R = TypeVar("R")

_MESSAGES = (
    "can't allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "std::bad_alloc",
)
"""Of plain RuntimeErrors: torch's allocator on a CPU, and libraries that allocate past torch."""


@dataclass(frozen=True)
class Exhausted:
    """Stands for a result for which memory did not suffice."""

    reason: str


class BatchSize:
    """How many rows go through a model together. Falls where memory runs out and does not rise again.

    A try at a larger size costs a discarded pass, and on a host that kills a process instead of refusing it memory,
    the run. What is gained is speed alone, so only new engines start with the configured size again.
    """

    def __init__(self, configured: int) -> None:
        self.configured = configured
        self.size = configured
        self.out_of_memory_count = 0

    def halve(self, used: int, work: str, reason: str) -> None:
        """Take half of what was too much.

        Args:
            used: rows of the largest batch tried; the size may have been larger.
            work: what was done, in words.
            reason: the error's text.

        Raises:
            OutOfMemory: it was a single row.
        """
        self.out_of_memory_count += 1
        if used <= 1:
            raise out_of_memory(work, f"{reason}, with one row at a time")
        self.size = min(self.size, used) // 2


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error says that memory ran out, on a GPU or a CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)


def attempt(work: Callable[[], R]) -> R | Exhausted:
    """The result of `work`, or `Exhausted`; what a failed try holds is released, for its traceback is gone."""
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        exhausted = Exhausted(f"{type(error).__name__}: {error}")
    release_memory()
    return exhausted


def in_batches(count: int, batch: BatchSize, compute: Callable[[range], None], *, work: str) -> None:
    """Call `compute` on the rows 0 … `count` in order, in batches that fit; a row whose batch failed comes again.

    Args:
        count: rows.
        batch: size to start with; smaller afterwards where memory ran out.
        compute: of one batch; its rows do not depend on which others are in it.
        work: what is done, in words.

    Raises:
        OutOfMemory: a single row does not fit.
    """
    start = 0
    while start < count:
        rows = range(start, min(start + batch.size, count))
        found = attempt(lambda rows=rows: compute(rows))
        if isinstance(found, Exhausted):
            batch.halve(len(rows), work, found.reason)
        else:
            start = rows.stop


def release_memory() -> None:
    """Give back what nothing refers to any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def memory_errors(work: str) -> Generator[None]:
    """Turn out-of-memory errors, on GPU and CPU, into ours."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory(work, str(error)) from error


def out_of_memory(work: str, reason: str) -> OutOfMemory:
    """The error with advice."""
    return OutOfMemory(
        f"memory ran out in {work}: {reason}. Lower ppo.micro_batch_rollouts (the result stays the same), "
        "rollout.batch_size or rollout.max_new_tokens, or set model.gradient_checkpointing=true."
    )
