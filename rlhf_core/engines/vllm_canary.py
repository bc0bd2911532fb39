"""Does a server answer as the policy does? Asked after each sync, and again after each batch (G2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from rlhf_core.data.refs import CheckpointRef
from rlhf_core.data.store import MANIFEST, read_json
from rlhf_core.engines.vllm_client import VllmClient
from rlhf_core.errors import CheckpointError, ConfigError, StaleEngine
from rlhf_core.models.scoring import probe_ids

_TEMPERATURE = 0.5
_TOKENS = 5
_CLEAR_GAP_NATS = 1e-2


@dataclass(frozen=True)
class SyncedPolicy:
    """A checkpoint's weights and what it says of the fixed token sequence."""

    path: Path
    folder: Path
    hashes: dict[str, str]
    probe: tuple[int, ...]
    recorded: tuple[float, ...]
    vocabulary_size: int


def read_policy(policy: CheckpointRef) -> SyncedPolicy:
    """What a server is sent and asked for.

    Raises:
        CheckpointError: the checkpoint has no weight file or no recorded log-probs.
    """
    folder = policy.path / "policy"
    files = read_json(policy.path / MANIFEST)["files"]
    hashes = {
        name.removeprefix("policy/"): str(facts["sha256"])
        for name, facts in files.items()
        if name.startswith("policy/") and name.endswith(".safetensors")
    }
    recorded = read_json(policy.path / "state.json").get("micro_inference")
    if not hashes or not recorded:
        raise CheckpointError(f"{policy.path} holds no policy weights, or no log-probs of its micro-inference.")
    size = int(AutoConfig.from_pretrained(folder).vocab_size)
    return SyncedPolicy(policy.path, folder, hashes, tuple(probe_ids(size)), tuple(map(float, recorded)), size)


def canary_nats(client: VllmClient, policy: SyncedPolicy, limit_nats: float) -> float:
    """The largest difference between the server's log-probs and those recorded with the checkpoint.

    Raises:
        StaleEngine: it is not below the limit: the server has other weights.
        RolloutServerLost, BadAnswer: the server does not answer, or with something else.
    """
    found = client.prompt_logprobs(policy.probe)
    difference = largest_difference(policy.recorded, found)
    if not difference < limit_nats:
        raise StaleEngine(
            f"{client.url} does not answer as the policy of {policy.path.name} does: log-probs differ by "
            f"{difference:.2e} nats (allowed: {limit_nats:.0e}). It holds older or foreign weights, or another "
            "precision than rollout.vllm.dtype; nothing that it sampled is used."
        )
    return difference


def largest_difference(recorded: Sequence[float], found: Sequence[float]) -> float:
    """In nats; NaN where a number is NaN or the lengths differ."""
    if len(recorded) != len(found) or not all(map(math.isfinite, [*recorded, *found])):
        return math.nan
    return max((abs(a - b) for a, b in zip(recorded, found, strict=True)), default=math.nan)


def require_tempered_logprobs(client: VllmClient, policy: SyncedPolicy) -> None:
    """See that a sampled token's log-prob is at the temperature it was sampled with (K01).

    Differences between tokens' log-probs grow as one over the temperature; in vLLM's default mode they do not change.

    Raises:
        ConfigError: the server reports log-probs from before the temperature.
    """
    plain: Any = client.first_logprobs(policy.probe, 1.0, _TOKENS)
    cold: Any = client.first_logprobs(policy.probe, _TEMPERATURE, _TOKENS)
    # The sampled token may be in one answer and not in the other.
    shared = sorted(set(plain) & set(cold), key=lambda name: plain[name])
    if len(shared) < 2:
        raise StaleEngine(f"{client.url} orders tokens differently at another temperature; it is no plain sampler.")
    gap, cold_gap = (logprobs[shared[-1]] - logprobs[shared[0]] for logprobs in (plain, cold))
    if gap > _CLEAR_GAP_NATS and abs(cold_gap - gap) < abs(cold_gap - gap / _TEMPERATURE):
        raise ConfigError(
            f"{client.url} reports log-probs from before the temperature. Start it with "
            "--logprobs-mode processed_logprobs; docs/rollouts.md has the whole command."
        )
