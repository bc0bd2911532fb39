"""Faults on command: a blow at a rank while it works, and what a test wants to know of it afterwards."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray.exceptions import RayError

from rlhf_core.data.store import RunFolder
from rlhf_core.recovery.ledger import Attempt, read_attempts
from rlhf_core.workers.rank_actor import RankActor
from rlhf_core.workers.ray_group import RayWorkers
from tests.flows.tiny_run import require_same_numbers, settings
from tests.tiny_model import TinyWorld

NOT_BEFORE = 3
"""Forward passes that each rank has taken of the work before the blow falls."""


def ray_settings(world: TinyWorld, home: Path, *, cluster: dict[str, Any] | None = None, **sections: Any) -> Any:
    """A run of two iterations by two ranks, whose updates are long enough to be hit in the middle."""
    optimizer = {"learning_rate": 1e-3, "warmup_steps": 0}
    base: dict[str, Any] = {
        "rounds": 1,
        "iterations_per_round": 2,
        "cluster": {"engine": "ray", "ranks": 2, "zero_stage": 2} | (cluster or {}),
        "ppo": {"epochs": 8, "micro_batch_rollouts": 1, "actor": optimizer, "critic": optimizer},
        "evaluation": {"held_out_rollouts": 4},
    }
    return settings(world, home, **(base | sections))


@dataclass(frozen=True)
class Undisturbed:
    """A run that others must equal, and the world that they share."""

    world: TinyWorld
    folder: Path

    def require_same(self, folder: RunFolder) -> None:
        require_same_numbers(folder.path, self.folder, iterations=2)


class Blow:
    """Falls once, in the middle of a call that all ranks work at."""

    def __init__(self, act: Callable[[RayWorkers, list[int]], None], *, during: str, after_updates: int) -> None:
        """See `strike`."""
        self._act, self._during, self._wait_for = act, during, after_updates
        self._updates = 0
        self.error: BaseException | None = None
        self.pids: list[int] = []
        self.fell: float | None = None
        self.noticed: float | None = None

    @property
    def seconds_to_notice(self) -> float:
        """From the blow to the typed error in the leading process."""
        assert self.fell is not None and self.noticed is not None, "the blow did not fall, or nobody noticed"
        return self.noticed - self.fell

    def around(self, call: Callable[[], Any], workers: RayWorkers, method: str) -> Any:
        """Do the call, and strike in the middle of it if it is the one."""
        due = self.fell is None and method == self._during and self._updates >= self._wait_for
        self._updates += method == "update"
        if not due:
            return call()
        self.pids = [pid for _, pid in workers.processes()]
        before = _steps(workers)
        thread = threading.Thread(target=self._fall, args=(workers, before), daemon=True)
        thread.start()
        try:
            return call()
        except BaseException as error:
            self.noticed, self.error = time.monotonic(), error
            raise
        finally:
            thread.join(60)

    def _fall(self, workers: RayWorkers, before: Sequence[int]) -> None:
        try:
            while any(now < then + NOT_BEFORE for now, then in zip(_steps(workers), before, strict=True)):
                time.sleep(0.002)
        except RayError:  # the work was over first: `seconds_to_notice` tells
            return
        self.fell = time.monotonic()
        self._act(workers, self.pids)


def strike(
    patch: pytest.MonkeyPatch, act: Callable[[RayWorkers, list[int]], None], *, during: str, after_updates: int = 1
) -> Blow:
    """Arm a blow.

    Args:
        patch: takes it away at the end of the test.
        act: given the group and its ranks' process ids.
        during: name of the call, as the ranks know it.
        after_updates: the first such call after so many updates.
    """
    blow, on_each = Blow(act, during=during, after_updates=after_updates), RayWorkers._on_each

    def watched(self: RayWorkers, method: str, *arguments: Any, **options: Any) -> Any:
        return blow.around(lambda: on_each(self, method, *arguments, **options), self, method)

    patch.setattr(RayWorkers, "_on_each", watched)
    return blow


def send(number: signal.Signals, rank: int) -> Callable[[RayWorkers, list[int]], None]:
    """Send a signal to one rank."""
    return lambda _, pids: os.kill(pids[rank], number)


class RaisesInAnUpdate(RankActor):
    """Rank 1 fails in the middle of its work, while rank 0 waits for it in a collective operation."""

    def _watch(self, *models: Any) -> None:
        super()._watch(*models)

        def fail(*_: Any) -> None:
            if torch.is_grad_enabled() and self._rank.ranks.number == 1:
                raise ZeroDivisionError("a fault of one rank")

        layers = [module for module in models[0].modules() if not list(module.children())]
        layers[0].register_forward_pre_hook(fail)


def failures(folder: RunFolder) -> list[Attempt]:
    return [one for one in read_attempts(folder) if one.outcome == "error"]


def wait_until(condition: Callable[[], bool], *, seconds: float, what: str | Callable[[], str]) -> float:
    """Seconds that it took; `what` is called, if it can be, once it has lasted too long."""
    began = time.monotonic()
    while not condition():
        in_time = time.monotonic() - began < seconds
        assert in_time, f"not within {seconds:.0f} s: {what if isinstance(what, str) else what()}"
        time.sleep(0.02)
    return time.monotonic() - began


def alive(pids: Sequence[int]) -> list[int]:
    """Those that still run; a zombie does not."""
    return [pid for pid in pids if _state(pid) not in ("", "Z", "X")]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _steps(workers: RayWorkers) -> list[int]:
    return ray.get([actor.pulse.remote() for actor in workers._actors], timeout=30)
