"""Shares requests out to servers: to the least busy one, again where one failed, each answer counted once."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from rlhf_core.engines.non_finite import NonFiniteLogits
from rlhf_core.engines.protocols import Generation
from rlhf_core.engines.vllm_answer import NonFiniteAnswer
from rlhf_core.engines.vllm_client import BadAnswer, Hung, VllmClient
from rlhf_core.errors import EngineError, RolloutServerLost

logger = logging.getLogger(__name__)


@dataclass
class Server:
    """One server and what is known of it."""

    client: VllmClient
    is_ours: bool = False
    busy: int = 0
    is_out: bool = False
    was_used: bool = False
    fault: str = ""


@dataclass(frozen=True)
class PoolLimits:
    """How much is asked at once, and how often again."""

    slots: int
    """Requests in flight on one server."""
    retries: int
    restarts: int


@dataclass
class _Batch:
    """The requests of one call."""

    waiting: deque[int]
    tries: list[int]
    found: dict[int, Generation] = field(default_factory=dict[int, Generation])
    failure: Exception | None = None
    restarts: int = 0


class ServerPool:
    """Runs requests on servers. A server that fails is out until `servers` puts it in again, or `revive` mends it."""

    def __init__(self, servers: Sequence[Server], limits: PoolLimits, revive: Callable[[Server], None]) -> None:
        """Keep them; `revive` makes a new start of a server of ours that is out, with the current weights."""
        self.servers = servers
        self.limits = limits
        self._revive = revive
        self._reviving = 0
        self._changed = threading.Condition()

    def run(self, count: int, ask: Callable[[VllmClient, int], Generation]) -> list[Generation]:
        """The answers to the requests 0 to `count - 1`, each exactly once.

        Raises:
            RolloutServerLost: no server is left, or a request failed with its servers too often.
            NonFiniteLogits: a request's log-probs are not finite, again and again.
            EngineError: a request was answered with garbage too often.
        """
        for server in self.servers:
            server.was_used = False
        batch = _Batch(deque(range(count)), [0] * count)
        threads = max(1, min(count, self.limits.slots * len(self.servers)))
        with ThreadPoolExecutor(threads, thread_name_prefix="vllm") as executor:
            try:
                workers = [executor.submit(self._work, batch, ask) for _ in range(threads)]
                for worker in workers:
                    worker.result()
            except BaseException as error:
                self._fail(batch, error if isinstance(error, Exception) else EngineError("sampling was interrupted."))
                raise
        if batch.failure is not None:
            raise batch.failure
        return [batch.found[index] for index in range(count)]

    def put_out(self, server: Server, fault: str) -> None:
        """Ask a server nothing more."""
        with self._changed:
            if not server.is_out:
                logger.warning("vLLM server %s is taken out: %s", server.client.url, fault)
            server.is_out, server.fault = True, fault
            self._changed.notify_all()

    def _work(self, batch: _Batch, ask: Callable[[VllmClient, int], Generation]) -> None:
        while (taken := self._take(batch)) is not None:
            server, index = taken
            client = server.client
            try:
                generation = ask(client, index)
            except (RolloutServerLost, BadAnswer) as error:
                self._handle(batch, taken, client, error)
            except Exception as error:
                self._give_back(batch, server, index)
                self._fail(batch, error)
            else:
                with self._changed:
                    batch.found[index] = generation
                    server.busy -= 1
                    self._changed.notify_all()

    def _take(self, batch: _Batch) -> tuple[Server, int] | None:
        """A server and a request for it; None when nothing is left to be done."""
        with self._changed:
            while True:
                if batch.failure is not None or len(batch.found) == len(batch.tries):
                    return None
                alive = [server for server in self.servers if not server.is_out]
                if not alive and not self._reviving:
                    batch.failure = _nobody_left(self.servers)
                    self._changed.notify_all()
                    return None
                free = [server for server in alive if server.busy < self.limits.slots]
                if batch.waiting and free:
                    server = min(free, key=lambda one: one.busy)
                    server.busy += 1
                    server.was_used = True
                    return server, batch.waiting.popleft()
                self._changed.wait()

    def _handle(
        self, batch: _Batch, taken: tuple[Server, int], client: VllmClient, error: RolloutServerLost | BadAnswer
    ) -> None:
        """After a failed request: is it the server, and may the request be tried again?"""
        server, index = taken
        is_lost = isinstance(error, Hung) or (isinstance(error, RolloutServerLost) and not client.is_ready())
        should_revive = False
        with self._changed:
            batch.tries[index] += 1
            if batch.tries[index] > self.limits.retries:
                batch.failure = batch.failure or _given_up(index, batch.tries[index], error)
            if is_lost and not server.is_out and server.client is client:  # else a new start is under way or done
                logger.warning("vLLM server %s is taken out: %s", client.url, error)
                server.is_out, server.fault = True, str(error)
                should_revive = server.is_ours and batch.restarts < self.limits.restarts and batch.failure is None
                self._reviving += should_revive
                batch.restarts += should_revive
        self._give_back(batch, server, index)
        if should_revive:
            self._bring_back(batch, server)

    def _bring_back(self, batch: _Batch, server: Server) -> None:
        try:
            self._revive(server)
        except Exception as error:
            self._fail(batch, error)
        else:
            server.is_out, server.fault = False, ""
        finally:
            with self._changed:
                self._reviving -= 1
                self._changed.notify_all()

    def _give_back(self, batch: _Batch, server: Server, index: int) -> None:
        with self._changed:
            server.busy -= 1
            batch.waiting.append(index)
            self._changed.notify_all()

    def _fail(self, batch: _Batch, error: Exception) -> None:
        with self._changed:
            batch.failure = batch.failure or error
            self._changed.notify_all()


def _nobody_left(servers: Sequence[Server]) -> RolloutServerLost:
    faults = "; ".join(server.fault for server in servers)
    return RolloutServerLost(f"no vLLM server is left to sample from: {faults}")


def _given_up(index: int, tries: int, error: RolloutServerLost | BadAnswer) -> Exception:
    if isinstance(error, NonFiniteAnswer):
        return NonFiniteLogits(index, error.token_index)
    given_up = RolloutServerLost if isinstance(error, RolloutServerLost) else BadAnswer
    failure = given_up(f"request {index} failed {tries} times, the last time so: {error}")
    failure.__cause__ = error
    return failure
