"""A checkpoint counts only when it loads and says what it said when it was saved (F2)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf_core.checkpoints.manifest import require_whole
from rlhf_core.checkpoints.trainer_files import require_matching_optimizers
from rlhf_core.config.models import ModelConfig
from rlhf_core.data.store import read_json
from rlhf_core.errors import CheckpointError, ConfigError, DataError
from rlhf_core.models.loading import load_policy

STATE = "state.json"
_PROBE_TOKENS = 16
_TOLERANCE_NATS = 1e-3


@torch.no_grad()
def micro_inference(model: torch.nn.Module) -> list[float]:
    """Log-probs in nats that the model gives to each next token of a fixed token sequence."""
    device = next(model.parameters()).device
    config: Any = model.config
    vocabulary = int(config.vocab_size)
    ids = (torch.arange(_PROBE_TOKENS + 1, device=device) * 7919 + 11) % vocabulary
    output: Any = model(input_ids=ids[None, :-1])
    logprobs: Tensor = torch.log_softmax(output.logits[0].float(), dim=-1)
    return logprobs.gather(1, ids[1:, None])[:, 0].tolist()


def verify_checkpoint(folder: Path, config: ModelConfig, *, manifest_sha256: str | None = None) -> None:
    """Check hashes, load the policy from disk, and repeat the recorded micro-inference.

    Raises:
        CheckpointError: says which of the three failed, and the numbers.
    """
    require_whole(folder, manifest_sha256=manifest_sha256)
    verify_content(folder, config)


def verify_content(folder: Path, config: ModelConfig) -> None:
    """What verification does beside the hashes, for a folder whose manifest was made from its files a moment ago.

    The weights are read from the file system again, and their log-probs compared with those of the model in memory: so
    what was written is what was meant. Of the optimizers' files names and shapes are compared. The system may answer
    from its cache: that the medium gives back what it was given is only known when the run starts from it, or when
    `rlhf checkpoints verify` is run later; both read everything against the hashes.

    Raises:
        CheckpointError: as `verify_checkpoint` does.
    """
    require_matching_optimizers(folder)
    try:
        recorded = read_json(folder / STATE)["micro_inference"]
        found = micro_inference(load_policy(str(folder / "policy"), config, torch.device("cpu")))
    except (ConfigError, DataError, KeyError) as error:
        raise CheckpointError(f"{folder} holds no whole policy: {error}") from error
    if len(recorded) != len(found):
        raise CheckpointError(f"{folder / STATE} records {len(recorded)} log-probs, expected {len(found)}.")
    difference = max((abs(a - b) for a, b in zip(recorded, found, strict=True)), default=math.nan)
    if not difference <= _TOLERANCE_NATS:
        raise CheckpointError(
            f"{folder} does not reproduce the log-probs recorded when saved: they differ by {difference:.2e} nats "
            f"(allowed: {_TOLERANCE_NATS:.0e}). It is marked damaged; an older checkpoint is used."
        )
