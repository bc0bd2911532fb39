"""The worker group of one process: one trainer, called directly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rlhf_core.config.run import RunConfig
from rlhf_core.data.refs import ControlState
from rlhf_core.engines.memory import memory_errors
from rlhf_core.engines.protocols import ExperienceTensors, RolloutEvaluation, RolloutTensors
from rlhf_core.engines.torch_trainer import TorchTrainer
from rlhf_core.engines.trainer_state import load_trainer, save_trainer
from rlhf_core.errors import EngineError
from rlhf_core.update.ppo import PpoUpdate


class InlineWorkers:
    """Implements `WorkerGroup`. After `close` every call raises EngineError."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        """Load all models in the state of the SFT model. Raises ConfigError where one cannot be loaded."""
        self._trainer: TorchTrainer | None = TorchTrainer(config, device)

    def evaluate_rollouts(self, rollouts: RolloutTensors) -> RolloutEvaluation:
        with memory_errors("evaluating rollouts"):
            return self._rank.evaluate(rollouts)

    def update(
        self,
        experience: ExperienceTensors,
        ptx_documents: Sequence[Sequence[int]],
        control: ControlState,
        *,
        iteration: int,
        seed: int,
    ) -> dict[str, float]:
        trainer = self._rank
        with memory_errors("the update"), trainer.training():
            return PpoUpdate(trainer, experience, ptx_documents, control, iteration=iteration).run(seed=seed)

    def save(self, folder: Path) -> None:
        save_trainer(self._rank, folder)

    def load(self, folder: Path) -> None:
        load_trainer(self._rank, folder)

    def policy_model(self) -> Any:
        return self._rank.policy

    def close(self) -> None:
        self._trainer = None

    @property
    def _rank(self) -> TorchTrainer:
        if self._trainer is None:
            raise EngineError("these workers are closed; make new ones and load a checkpoint into them.")
        return self._trainer
