"""Gradients of one mini-batch, gathered over micro-batches that fit into memory (F4, C05)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from rlhf_core.engines.memory import BatchSize, Exhausted, attempt
from rlhf_core.numerics.reductions import AllReduce

R = TypeVar("R")


def accumulate(
    jobs_of: Callable[[int], Sequence[Callable[[], R]]],
    batch: BatchSize,
    *,
    discard: Callable[[], None],
    all_reduce: AllReduce,
    work: str,
) -> list[R]:
    """Do all jobs of a mini-batch and return their results; where one runs out of memory, begin anew with half.

    Ranks tell each other after every job, so that all of them begin anew together and with the same size. A rank that
    runs out of memory inside a collective cannot tell; the others then wait for it until the group notices.

    Args:
        jobs_of: the jobs for a number of rows per pass, equally many on all ranks; each adds to the gradients. Their
            sum is the same for any number.
        batch: rows per pass; stays smaller afterwards where memory ran out.
        discard: removes the gradients of a try that failed.
        all_reduce: sums over ranks.
        work: what is done, in words.

    Raises:
        OutOfMemory: on some rank a single row does not fit; there are no gradients then.
    """
    while True:
        found = _done(jobs_of(batch.size), all_reduce)
        if not isinstance(found, Exhausted):
            return found
        discard()
        batch.halve(batch.size, work, found.reason)


def _done(jobs: Sequence[Callable[[], R]], all_reduce: AllReduce) -> list[R] | Exhausted:
    """Results of all jobs; `Exhausted`, on every rank, from the first one on for which any rank lacks memory."""
    results: list[R] = []
    for job in jobs:
        found = attempt(job)
        is_exhausted = isinstance(found, Exhausted)
        if float(all_reduce(torch.tensor(float(is_exhausted), dtype=torch.float64))):
            return found if isinstance(found, Exhausted) else Exhausted("another rank ran out of memory")
        if not isinstance(found, Exhausted):
            results.append(found)
    return results
