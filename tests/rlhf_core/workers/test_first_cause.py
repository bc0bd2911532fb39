"""Which of several ranks' failures is told: the one that began it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from rlhf_core.errors import CommunicationTimeout, OutOfMemory, WorkerLost
from rlhf_core.workers import ray_group


def raised_by_a_rank(cause: Exception) -> RayTaskError:
    return RayTaskError("work", "traceback", cause)


GOSSIP = raised_by_a_rank(RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:4711"))
DEATH = ActorDiedError()


class Ranks:
    """Stands in for Ray: each wait lets the next reference fail, or passes the time when none is left to."""

    def __init__(self, failures: dict[str, RayError]) -> None:
        self.failures, self.now, self.waits = failures, 0.0, 0

    def wait(self, refs: Sequence[str], timeout: float) -> tuple[list[str], list[str]]:
        self.waits += 1
        for ref in refs:
            if ref in self.failures:
                return [ref], [other for other in refs if other != ref]
        self.now += timeout
        return [], list(refs)

    def get(self, ref: str) -> Any:
        raise self.failures[ref]

    def monotonic(self) -> float:
        return self.now


def told(monkeypatch: pytest.MonkeyPatch, first: RayError, failures: dict[str, RayError]) -> tuple[Any, Ranks]:
    ranks = Ranks(failures)
    monkeypatch.setattr(ray_group, "ray", ranks)
    monkeypatch.setattr(ray_group, "time", ranks)
    cause: Any = ray_group._first_cause(first, ["rank 0", "rank 1"])
    return ray_group._typed(cause, 2), ranks


def test_a_dead_rank_is_told_and_not_the_partner_that_lost_its_connection(monkeypatch):
    error, _ = told(monkeypatch, GOSSIP, {"rank 0": GOSSIP, "rank 1": DEATH})
    assert isinstance(error, WorkerLost)


def test_a_rank_that_ran_out_of_memory_is_told(monkeypatch):
    error, _ = told(monkeypatch, GOSSIP, {"rank 0": GOSSIP, "rank 1": raised_by_a_rank(OutOfMemory("no room"))})
    assert isinstance(error, OutOfMemory)


def test_the_connection_is_told_where_nothing_else_comes_in_time(monkeypatch):
    error, ranks = told(monkeypatch, GOSSIP, {"rank 0": GOSSIP})
    assert isinstance(error, CommunicationTimeout)
    assert ranks.now == pytest.approx(ray_group._CAUSE_SECONDS)


def test_a_cause_of_its_own_is_told_at_once(monkeypatch):
    error, ranks = told(monkeypatch, DEATH, {})
    assert isinstance(error, WorkerLost)
    assert ranks.waits == 0
