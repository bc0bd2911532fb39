"""A checkpoint counts only when it loads and says what it said when it was saved (F2)."""

from __future__ import annotations

from pathlib import Path

import torch

from rlhf_core.checkpoints.manifest import require_whole
from rlhf_core.config.models import ModelConfig
from rlhf_core.data.store import read_json
from rlhf_core.errors import CheckpointError
from rlhf_core.models.loading import load_policy
from rlhf_core.models.scoring import micro_inference

STATE = "state.json"
_TOLERANCE_NATS = 1e-3


def verify_checkpoint(folder: Path, config: ModelConfig) -> None:
    """Check hashes, load the policy from disk, and repeat the recorded micro-inference.

    Raises:
        CheckpointError: says which of the three failed, and the numbers.
    """
    require_whole(folder)
    recorded = read_json(folder / STATE)["micro_inference"]
    found = micro_inference(load_policy(str(folder / "policy"), config, torch.device("cpu")))
    difference = max(abs(a - b) for a, b in zip(recorded, found, strict=True))
    if not difference <= _TOLERANCE_NATS:
        raise CheckpointError(
            f"{folder} does not reproduce the log-probs recorded when saved: they differ by {difference:.2e} nats "
            f"(allowed: {_TOLERANCE_NATS:.0e}). It is marked damaged; an older checkpoint is used."
        )
