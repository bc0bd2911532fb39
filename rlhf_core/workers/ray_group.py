"""The trainer's ranks as Ray actors, on one machine or many (DESIGN 4).

Ray tells within a second that an actor or its machine is gone. The others then wait in a collective operation, so the
group ends all of them and raises a typed error; the retry makes a new group. Actors belong to this process: they end
when it does, however it ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import ray
import torch
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from rlhf_core.config.run import RunConfig
from rlhf_core.data.refs import ControlState
from rlhf_core.engines.protocols import (
    ExperienceTensors,
    Generation,
    GenerationRequest,
    RolloutEvaluation,
    RolloutTensors,
    Sampling,
    TokenPair,
)
from rlhf_core.errors import CommunicationTimeout, EngineError, RlhfError, Stalled, WorkerLost
from rlhf_core.workers.local_ray import connect, reserve
from rlhf_core.workers.rank_actor import Place, RankActor

_POLL_SECONDS = 2.0
_PULSE_SECONDS = 5.0
_CAUSE_SECONDS = 3.0
_PAIRS_PER_CALL = 256
_COLLECTIVE_SIGNS = ("Timed out waiting", "Connection closed by peer", "Connection reset by peer", "NCCL", "gloo")


class RayWorkers:
    """Implements `WorkerGroup`. After a failure or `close` every call raises EngineError."""

    def __init__(self, config: RunConfig) -> None:
        """Start the ranks with all models in the state of the SFT model.

        Raises:
            ConfigError: a model cannot be loaded.
            EngineError: Ray cannot be reached, has too little room, or the ranks do not come up in time.
        """
        connect(config)
        self._config = config
        self._group = reserve(config)
        self._actors: list[Any] = [self._new_actor(number) for number in range(config.cluster.ranks)]
        self._is_closed = False
        settings = config.cluster
        address, port = self._gather([self._actors[0].meeting_point.remote()], settings.start_seconds)[0]
        places = [Place(number, settings.ranks, address, port) for number in range(settings.ranks)]
        starts = [actor.start.remote(place) for actor, place in zip(self._actors, places, strict=True)]
        self.max_length: int = self._gather(starts, settings.start_seconds)[0]

    def evaluate_rollouts(self, rollouts: RolloutTensors) -> RolloutEvaluation:
        """See `WorkerGroup`."""
        parts = torch.arange(len(rollouts.response_mask)).tensor_split(len(self._actors))
        shares = [RolloutTensors(**{name: t[rows] for name, t in vars(rollouts).items()}) for rows in parts]
        found = self._on_each("evaluate_rollouts", [(share,) for share in shares])
        return RolloutEvaluation(
            **{name: torch.cat([getattr(part, name) for part in found]) for name in vars(found[0])}
        )

    def update(
        self,
        experience: ExperienceTensors,
        ptx_documents: Sequence[Sequence[int]],
        control: ControlState,
        *,
        iteration: int,
        seed: int,
    ) -> dict[str, float]:
        """See `WorkerGroup`."""
        shared = ray.put(experience)
        arguments = [(shared, list(ptx_documents), control)] * len(self._actors)
        return self._on_each("update", arguments, iteration=iteration, seed=seed)[0]

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Generation]:
        """See `RolloutEngine`; each rank samples its share, and a response depends on its seed alone (G4)."""
        shares = _split(requests, len(self._actors))
        found = self._on_each("generate", [(share, sampling) for share in shares])
        return [generation for part in found for generation in part]

    def loglikelihoods(
        self, pairs: Sequence[TokenPair], *, batch_size: int, advance: Callable[[int], None]
    ) -> list[tuple[float, bool]]:
        """See `TokenScorer`."""
        found: list[tuple[float, bool]] = []
        step = _PAIRS_PER_CALL * len(self._actors)
        for start in range(0, len(pairs), step):
            shares = _split(pairs[start : start + step], len(self._actors))
            parts = self._on_each("loglikelihoods", [(share,) for share in shares], batch_size=batch_size)
            found += [result for part in parts for result in part]
            advance(sum(map(len, parts)))
        return found

    def micro_inference(self) -> list[float]:
        """See `WorkerGroup`."""
        return self._on_each("micro_inference", [()] * len(self._actors))[0]

    def save(self, folder: Path, done: Callable[[Path], None] = lambda path: None) -> None:
        """See `WorkerGroup`; `folder` must be on a disk that all ranks share. Files are reported when all are whole."""
        self._on_each("save", [(folder,)] * len(self._actors))
        for path in folder.rglob("*"):
            if path.is_file():
                done(path)

    def load(self, folder: Path) -> None:
        """See `WorkerGroup`; the folder may be of another number of ranks or ZeRO stage."""
        self._on_each("load", [(folder,)] * len(self._actors))

    def processes(self) -> list[tuple[str, int]]:
        """Machine and process id of each rank."""
        return self._gather([actor.process.remote() for actor in self._actors], self._config.cluster.start_seconds)

    def close(self) -> None:
        """End the ranks."""
        if self._is_closed:
            return
        self._is_closed = True
        for actor in self._actors:
            ray.kill(actor)
        ray.util.remove_placement_group(self._group)

    def _new_actor(self, number: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = self._group.bundle_specs[number]
        kind: Any = cast(Any, ray.remote)(concurrency_groups={"beside": 1})(RankActor)
        return kind.options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number),
            runtime_env={"env_vars": _environment(bundle)},
        ).remote(self._config)

    def _on_each(self, method: str, arguments: Sequence[tuple[Any, ...]], **options: Any) -> list[Any]:
        if self._is_closed:
            raise EngineError("these ranks have ended; make new ones and load a checkpoint into them.")
        refs = [
            actor.work.remote(method, *given, **options) for actor, given in zip(self._actors, arguments, strict=True)
        ]
        return self._gather(refs, None)

    def _gather(self, refs: list[Any], seconds: float | None) -> list[Any]:
        """The results, or the first failure; then all ranks are ended, since the others may wait for ever.

        Args:
            refs: one for each rank.
            seconds: longest wait; None waits as long as the ranks' step counters move.
        """
        watch = _Watch(self._actors, self._config.cluster.stall_seconds)
        deadline = None if seconds is None else time.monotonic() + seconds
        pending = list(refs)
        try:
            while pending:
                done, pending = ray.wait(pending, num_returns=len(pending), timeout=_POLL_SECONDS)
                ray.get(done)
                if not pending:
                    break
                if deadline is None:
                    watch.look()
                elif time.monotonic() > deadline:
                    raise Stalled(
                        f"{len(pending)} of {len(refs)} ranks did not come up within {seconds:.0f} s "
                        "(cluster.start_seconds). Look at Ray's logs, or raise the limit."
                    )
            return ray.get(refs)
        except RayError as error:
            cause = _first_cause(error, refs)
            self.close()
            raise _typed(cause, len(self._actors)) from cause
        except SystemError as error:
            self.close()
            if error.__cause__ is not None and not isinstance(error.__cause__, Exception):
                raise error.__cause__ from None  # a signal's answer, raised inside Ray's compiled code
            raise
        except BaseException:
            self.close()
            raise


class _Watch:
    """Sees whether ranks that owe a result still move (F3): no step, or no answer, for `stall_seconds` is a stall."""

    def __init__(self, actors: Sequence[Any], stall_seconds: float) -> None:
        self._actors, self._stall_seconds = actors, stall_seconds
        self._last: dict[int, int] = {}
        self._moved = [time.monotonic()] * len(actors)

    def look(self) -> None:
        """Raises Stalled, naming the ranks that did not answer, else those that took no step."""
        now = time.monotonic()
        answers = [actor.pulse.remote() for actor in self._actors]
        done, _ = ray.wait(answers, num_returns=len(answers), timeout=_PULSE_SECONDS)
        silent = [rank for rank, answer in enumerate(answers) if answer not in done]
        for rank, answer in enumerate(answers):
            if rank in silent:
                continue
            steps = cast(int, cast(Any, ray.get)(answer))
            if steps != self._last.get(rank):
                self._last[rank], self._moved[rank] = steps, now
        idle = now - max(self._moved)
        waited = time.monotonic()  # after the answers were due, or a silent rank would cost another look
        late = [rank for rank in silent if waited - self._moved[rank] > self._stall_seconds]
        if late or idle > self._stall_seconds:
            who = f"rank {', '.join(map(str, late or silent))} does not answer" if late or silent else "no rank moves"
            raise Stalled(
                f"{who} for {self._stall_seconds:.0f} s (cluster.stall_seconds) while work is owed; the ranks are "
                "ended. A stopped process, a hung collective operation or a dead file system look like this."
            )


def _first_cause(error: RayError, refs: Sequence[Any]) -> RayError:
    """What began it: a rank whose partner died says so at once, often before Ray tells of the dead one."""
    deadline = time.monotonic() + _CAUSE_SECONDS
    waiting = list(refs)
    while _is_of_a_collective(error) and waiting and time.monotonic() < deadline:
        done, waiting = ray.wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        for ref in done:
            try:
                ray.get(ref)
            except RayError as other:
                if not _is_of_a_collective(other):
                    return other
    return error


def _is_of_a_collective(error: RayError) -> bool:
    if not isinstance(error, RayTaskError) or isinstance(error.cause, RlhfError):
        return False
    return any(sign in str(error.cause) for sign in _COLLECTIVE_SIGNS)


def _typed(error: RayError, ranks: int) -> RlhfError:
    if isinstance(error, RayTaskError):
        cause = error.cause
        if isinstance(cause, RlhfError):
            return cause
        text = str(cause)
        if _is_of_a_collective(error):
            return CommunicationTimeout(
                f"the ranks lost each other: {text.splitlines()[0][:300]}. One of them is gone, or slower than "
                "cluster.collective_seconds."
            )
        return EngineError(f"a rank failed: {type(cause).__name__}: {text[:500]}")
    if isinstance(error, RayActorError):
        return WorkerLost(
            f"one of {ranks} training ranks is gone ({str(error).strip().splitlines()[0][:300]}); the others were "
            "ended. Out of memory, a kill or a lost machine look like this: see the machine's log."
        )
    if isinstance(error, GetTimeoutError):
        return CommunicationTimeout(f"Ray did not answer in time: {error}")
    return WorkerLost(f"Ray failed: {type(error).__name__}: {str(error)[:500]}")


def _environment(bundle: Mapping[str, float]) -> dict[str, str]:
    threads = {"OMP_NUM_THREADS": str(max(1, int(bundle["CPU"])))}
    return threads if bundle.get("GPU") else threads | {"DS_ACCELERATOR": "cpu"}


def _split(items: Sequence[Any], parts: int) -> list[list[Any]]:
    """In order, into parts whose sizes differ by at most one."""
    bounds = [len(items) * part // parts for part in range(parts + 1)]
    return [list(items[start:stop]) for start, stop in pairwise(bounds)]
