"""What one rank does, alone or among others; a worker group shares work out to ranks and puts the results together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rlhf_core.data.refs import ControlState
from rlhf_core.engines.memory import memory_errors
from rlhf_core.engines.prefix_scorer import ModelScorer
from rlhf_core.engines.protocols import (
    ExperienceTensors,
    Generation,
    GenerationRequest,
    RolloutEvaluation,
    RolloutTensors,
    Sampling,
    TokenPair,
)
from rlhf_core.engines.torch_trainer import TorchTrainer
from rlhf_core.engines.trainer_state import load_trainer, save_trainer
from rlhf_core.engines.transformers_rollout import TransformersRollout
from rlhf_core.models.scoring import micro_inference
from rlhf_core.numerics.reductions import SOLO, Ranks
from rlhf_core.update.ppo import PpoUpdate


class Rank:
    """A trainer and its place among the ranks. Each method must be called on all ranks, with the same shared input."""

    def __init__(self, trainer: TorchTrainer, ranks: Ranks = SOLO) -> None:
        self.trainer, self.ranks = trainer, ranks
        config = trainer.config
        self._rollout = TransformersRollout(
            trainer.policy, trainer.tokenizer, batch_size=config.rollout.batch_size, autocast=config.model.autocast
        )
        self._scorer = ModelScorer(trainer.policy, autocast=config.model.autocast)
        self.max_length = self._scorer.max_length

    def evaluate_rollouts(self, rollouts: RolloutTensors) -> RolloutEvaluation:
        """Of this rank's rollouts."""
        with memory_errors("evaluating rollouts"):
            return self.trainer.evaluate(rollouts)

    def update(
        self,
        experience: ExperienceTensors,
        ptx_documents: Sequence[Sequence[int]],
        control: ControlState,
        *,
        iteration: int,
        seed: int,
    ) -> dict[str, float]:
        """All ranks get all of the experience; the metrics are those of all ranks."""
        with memory_errors("the update"), self.trainer.training():
            update = PpoUpdate(self.trainer, experience, ptx_documents, control, iteration=iteration, ranks=self.ranks)
            return update.run(seed=seed)

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Generation]:
        """Responses to this rank's requests."""
        with self.trainer.whole():
            return self._rollout.generate(requests, sampling)

    def loglikelihoods(
        self, pairs: Sequence[TokenPair], *, batch_size: int, advance: Callable[[int], None] = lambda done: None
    ) -> list[tuple[float, bool]]:
        """Of this rank's pairs."""
        with self.trainer.whole():
            return self._scorer.loglikelihoods(pairs, batch_size=batch_size, advance=advance) if pairs else []

    def micro_inference(self) -> list[float]:
        """See `models.scoring`."""
        with self.trainer.whole():
            return micro_inference(self.trainer.policy)

    def save(self, folder: Path, done: Callable[[Path], None] = lambda path: None) -> None:
        """Write the state; rank 0 writes what all share."""
        save_trainer(self.trainer, folder, self.ranks, done)

    def load(self, folder: Path) -> None:
        """Take the state that any number of ranks wrote."""
        load_trainer(self.trainer, folder, self.ranks)
