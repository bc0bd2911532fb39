"""A checkpoint counts only when it loads and says what it said when it was saved (F2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf_core.checkpoints.manifest import require_whole
from rlhf_core.config.models import ModelConfig
from rlhf_core.data.store import read_json
from rlhf_core.errors import CheckpointError
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
