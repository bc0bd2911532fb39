"""A checkpoint counts only when it loads and says what it said when it was saved (F2)."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from rlhf_core.checkpoints.manifest import require_whole
from rlhf_core.checkpoints.trainer_files import require_matching_optimizers
from rlhf_core.config.models import ModelConfig
from rlhf_core.data.store import read_json
from rlhf_core.errors import CheckpointError, ConfigError, DataError
from rlhf_core.models.loading import load_policy
from rlhf_core.models.scoring import micro_inference

STATE = "state.json"
_TOLERANCE_NATS = 1e-3


def verify_checkpoint(folder: Path, config: ModelConfig, *, manifest_sha256: str | None = None) -> None:
    """Check hashes, load the policy from disk, and repeat the recorded micro-inference.

    Raises:
        CheckpointError: says which of the three failed, and the numbers.
    """
    require_whole(folder, manifest_sha256=manifest_sha256)
    verify_content(folder, config)


def verify_content(folder: Path, config: ModelConfig) -> None:
    """What verification does beside the hashes, for a folder whose manifest is made from its files just now.

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
