"""The `vllm` rollout engine: samples on vLLM servers that hold the policy's weights (G1, G2)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from transformers import GenerationConfig, PreTrainedTokenizerBase

from rlhf_core.config.rollout import RolloutConfig
from rlhf_core.data.refs import CheckpointRef
from rlhf_core.engines.protocols import Generation, GenerationRequest, Sampling
from rlhf_core.engines.transformers_rollout import eos_token_ids
from rlhf_core.engines.vllm_answer import Vocabulary, completion_body, generation_of
from rlhf_core.engines.vllm_canary import SyncedPolicy, canary_nats, read_policy, require_tempered_logprobs
from rlhf_core.engines.vllm_client import VllmClient
from rlhf_core.engines.vllm_pool import PoolLimits, Server, ServerPool
from rlhf_core.engines.vllm_process import Launch, VllmProcess
from rlhf_core.errors import ConfigError, DataError, EngineError, RolloutServerLost
from rlhf_core.numerics.logprobs import require_temperature


class VllmRollout:
    """A `RolloutEngine` on servers: those that the settings name, or one that is started here.

    `sync` comes first. Afterwards every server holds the policy's weights, as its log-probs prove; a server that cannot
    be reached is left out until the next sync.
    """

    def __init__(self, rollout: RolloutConfig, tokenizer: PreTrainedTokenizerBase, log_folder: Path) -> None:
        self.rollout = rollout
        self.settings = rollout.vllm
        self.tokenizer = tokenizer
        self.log_folder = log_folder
        self.sync_seconds: list[float] = []
        """Of each sync, for who keeps times; may be emptied."""
        self.canary_nats = 0.0
        """The largest difference to the trainer's log-probs on any server at the last sync."""
        self._policy: SyncedPolicy | None = None
        self._vocabulary = Vocabulary(0, frozenset())
        self._process: VllmProcess | None = None
        limits = PoolLimits(rollout.batch_size, self.settings.request_retries, self.settings.restarts)
        self._pool = ServerPool([Server(self._client(url)) for url in self.settings.urls], limits, self._revive)

    @property
    def urls(self) -> list[str]:
        """The servers' addresses; ours is there after the first sync."""
        return [server.client.url for server in self._pool.servers]

    def sync(self, policy: CheckpointRef) -> None:
        """Give every server the checkpoint's weights and see that it answers as the checkpoint does.

        Nothing is done where the servers hold them already.

        Raises:
            CheckpointError: the checkpoint is not whole.
            ConfigError: vLLM's environment is missing, or a server was not started as it must be.
            StaleEngine: a server refuses the weights or does not answer as the policy.
            RolloutServerLost: no server can be reached.
            EngineError: our server does not start.
        """
        synced = read_policy(policy)
        if synced == self._policy:  # by its hashes too: after a rollback a step is written anew, with other weights
            return
        self._policy = None
        started = time.perf_counter()
        if not self.settings.urls and (self._process is None or not self._process.is_alive):
            self._start(synced)
        servers = list(self._pool.servers)
        with ThreadPoolExecutor(len(servers)) as executor:
            differences = list(executor.map(lambda server: self._sync_or_put_out(server, synced), servers))
        reached = [difference for difference in differences if difference is not None]
        if not reached:
            raise RolloutServerLost("no vLLM server can be reached: " + "; ".join(server.fault for server in servers))
        self.canary_nats = max(reached)
        self.sync_seconds.append(time.perf_counter() - started)
        self._policy = synced
        self._vocabulary = Vocabulary(synced.vocabulary_size, self._eos_ids(synced.folder))

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Generation]:
        """One generation per request, in the requests' order.

        Raises:
            DataError: a prompt has no token.
            ConfigError: the temperature is not above 0, or noise is asked for.
            NonFiniteLogits: the policy's log-probs are NaN or infinite; names the request.
            RolloutServerLost: no server is left, or a request failed too often.
            StaleEngine: a server lost the policy's weights meanwhile.
            EngineError: a request was answered with garbage too often.
        """
        require_temperature(sampling.temperature)
        if sampling.noise_std:
            raise ConfigError("vLLM cannot add noise to logits. Set rollout.exploration.iterations to 0.")
        if self._policy is None:
            raise EngineError("this engine has no policy yet, or is closed; give it one with sync.")
        for index, request in enumerate(requests):
            if not request.prompt_ids:
                raise DataError(f"request {index} (seed {request.seed}) has an empty prompt. Leave such prompts out.")

        def ask(client: VllmClient, index: int) -> Generation:
            answer = client.complete(completion_body(requests[index], sampling, self._vocabulary))
            return generation_of(answer, sampling, self._vocabulary)

        found = self._pool.run(len(requests), ask)
        self._confirm(self._policy)
        return found

    def close(self) -> None:
        """Let go of the servers; the one that was started here ends."""
        self._policy = None
        for server in self._pool.servers:
            server.client.close()
        if self._process is not None:
            self._process.close()
            self._process = None

    def _sync_or_put_out(self, server: Server, policy: SyncedPolicy) -> float | None:
        """The canary's difference; None where the server cannot be reached."""
        try:
            difference = self._sync_server(server, policy)
        except RolloutServerLost as error:
            self._pool.put_out(server, str(error))
            return None
        server.is_out, server.fault = False, ""
        return difference

    def _sync_server(self, server: Server, policy: SyncedPolicy) -> float:
        server.client.load_weights(policy.folder, policy.hashes)
        difference = canary_nats(server.client, policy, self.settings.canary_limit_nats)
        require_tempered_logprobs(server.client, policy)
        return difference

    def _confirm(self, policy: SyncedPolicy) -> None:
        """Ask again: a server that somebody restarted while it sampled has older weights."""
        for server in self._pool.servers:
            if server.was_used and not server.is_out:
                canary_nats(server.client, policy, self.settings.canary_limit_nats)

    def _start(self, policy: SyncedPolicy) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None
        for server in self._pool.servers:
            server.client.close()
        self._process = VllmProcess(Launch(self.rollout, policy.folder, self.log_folder))
        self._pool.servers = [Server(self._client(self._process.url), is_ours=True)]

    def _revive(self, server: Server) -> None:
        """Start our server anew at the policy that is sampled from."""
        policy = self._policy
        if policy is None or self._process is None:
            raise EngineError("this engine is closed.")
        old = server.client
        self._process.close()
        self._process = VllmProcess(Launch(self.rollout, policy.folder, self.log_folder))
        server.client = self._client(self._process.url)
        old.close()
        self._sync_server(server, policy)

    def _client(self, url: str) -> VllmClient:
        return VllmClient(url, self.settings, self.rollout.batch_size)

    def _eos_ids(self, folder: Path) -> frozenset[int]:
        has_settings = (folder / "generation_config.json").is_file()
        settings = GenerationConfig.from_pretrained(folder) if has_settings else None
        return eos_token_ids(SimpleNamespace(generation_config=settings), self.tokenizer)
