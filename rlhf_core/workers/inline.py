"""The worker group of one process: one rank, called directly."""

from __future__ import annotations

from typing import Any

import torch

from rlhf_core.config.run import RunConfig
from rlhf_core.engines.torch_trainer import TorchTrainer
from rlhf_core.errors import EngineError
from rlhf_core.workers.rank import Rank


class InlineWorkers(Rank):
    """Implements `WorkerGroup`. After `close` every call raises EngineError."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        """Load all models in the state of the SFT model. Raises ConfigError where one cannot be loaded."""
        super().__init__(TorchTrainer(config, device))

    def policy_model(self) -> Any:
        """The live policy (a Hugging Face causal LM in eval mode)."""
        return self.trainer.policy

    def close(self) -> None:
        """Release the models."""
        self.__dict__.clear()

    def __getattr__(self, name: str) -> Any:
        raise EngineError("these workers are closed; make new ones and load a checkpoint into them.")
