"""Bradley-Terry training of a reward model (W1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlhf_core.config.reward import RewardModelTrainingConfig
from rlhf_core.control.learning_rate import warmup_cosine
from rlhf_core.errors import ConfigError, DataError, NumericsError
from rlhf_core.models.pair_packing import PairTokens
from rlhf_core.models.reward_model import RewardModel
from rlhf_core.seeding import derive_seed

MAX_GRAD_NORM = 1.0
BUCKET_BATCHES = 8
"""Batches whose pairs are sorted by length among themselves: little padding, and still a random order."""


@dataclass(frozen=True)
class ValidationPoint:
    """What the validation split said after a number of optimizer steps."""

    step: int
    accuracy: float
    loss: float


@dataclass
class TrainingReport:
    """How a training went; `best` is the point whose weights the model has now."""

    best: ValidationPoint
    history: list[ValidationPoint] = field(default_factory=list[ValidationPoint])
    training_losses: list[float] = field(default_factory=list[float])
    steps: int = 0
    is_stopped_early: bool = False
    padded_fraction: float = 0.0


def bradley_terry_loss(scores: Tensor, margin: float = 0.0) -> Tensor:
    """Sum over pairs of `-log sigmoid(chosen - rejected - margin)`, nats, for scores `[pairs, 2]`.

    Source: Bradley & Terry 1952; the margin: Touvron et al. 2023, arXiv:2307.09288, eq. 2.
    """
    return -torch.nn.functional.logsigmoid(scores[:, 0] - scores[:, 1] - margin).sum()


def pair_accuracy(scores: Tensor) -> float:
    """Share of pairs `[pairs, 2]` whose chosen response has the higher score; a tie counts half."""
    margin = scores[:, 0] - scores[:, 1]
    return float(((margin > 0).double() + 0.5 * (margin == 0).double()).mean())


def train_reward_model(
    reward_model: RewardModel,
    pairs: Sequence[PairTokens],
    config: RewardModelTrainingConfig,
    *,
    seed: int,
    advance: Callable[[int], None] | None = None,
) -> TrainingReport:
    """Train in place and leave the weights of the best validation.

    The lower layers that are not trained keep no activations, gradients or optimizer state. Best is the highest
    accuracy on the validation split, the lower loss where accuracies are equal.

    Args:
        reward_model: as `new_reward_model` made it.
        pairs: of which `validation_fraction` is split off for early stopping.
        config: training settings.
        seed: of the split and of the batches' order.
        advance: called with the number of pairs that an optimizer step has used.

    Raises:
        DataError: fewer than two pairs.
        NumericsError: the loss is NaN or infinite.
    """
    if len(pairs) < 2:
        raise DataError(
            f"a reward model needs at least 2 preference pairs, one of them to validate; there are {len(pairs)}."
        )
    rng = np.random.Generator(np.random.PCG64(derive_seed(seed, "reward_model")))
    order = rng.permutation(len(pairs))
    held = max(1, round(config.validation_fraction * len(pairs)))
    validation, training = [pairs[i] for i in order[:held]], [pairs[i] for i in order[held:]]
    return _Training(reward_model, config, training, validation).run(rng, advance or (lambda _: None))


class _Training:
    """One training: optimizer, schedule, and the best weights so far."""

    def __init__(
        self,
        reward_model: RewardModel,
        config: RewardModelTrainingConfig,
        training: Sequence[PairTokens],
        validation: Sequence[PairTokens],
    ) -> None:
        self.reward_model, self.config = reward_model, config
        self.training, self.validation = training, validation
        self.parameters = choose_trainable(reward_model, config.trainable_layers)
        self.optimizer = _optimizer(reward_model, self.parameters, config)
        self.peaks = [group["lr"] for group in self.optimizer.param_groups]
        per_epoch = -(-len(training) // config.batch_pairs)
        self.total_steps = per_epoch * config.epochs
        self.validation_gap = max(1, -(-per_epoch // config.validations_per_epoch))
        self.tokens = self.padded = self.misses = 0
        self.report = TrainingReport(best=ValidationPoint(0, -1.0, float("inf")))
        self.best_weights: list[Tensor] = []

    def run(self, rng: np.random.Generator, advance: Callable[[int], None]) -> TrainingReport:
        report = self.report
        for _ in range(self.config.epochs):
            for batch in batches_of_like_length([pair.length for pair in self.training], self.config.batch_pairs, rng):
                self._step([self.training[i] for i in batch])
                advance(len(batch))
                is_last = report.steps == self.total_steps
                if (report.steps % self.validation_gap == 0 or is_last) and self._should_stop():
                    report.is_stopped_early = not is_last
                    return self._finished()
        return self._finished()

    def _step(self, batch: Sequence[PairTokens]) -> None:
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            warmup = round(self.config.warmup_fraction * self.total_steps)
            group["lr"] = warmup_cosine(
                self.report.steps, peak=peak, warmup_steps=warmup, total_steps=self.total_steps, floor_fraction=0.0
            )
        total = 0.0
        for start in range(0, len(batch), self.config.micro_batch_pairs):
            micro = batch[start : start + self.config.micro_batch_pairs]
            loss = bradley_terry_loss(self.reward_model.forward_pairs(micro), self.config.margin) / len(batch)
            loss.backward()
            total += float(loss.detach())
            self.tokens += sum(pair.length for pair in micro)
            self.padded += sum(max(p.length for p in micro) - pair.length for pair in micro)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, MAX_GRAD_NORM)
        if not (np.isfinite(total) and torch.isfinite(norm)):
            raise NumericsError(
                f"reward model, step {self.report.steps + 1}: loss {total}, gradient norm {float(norm)}. Set "
                f"reward_model.train.learning_rate (now {self.config.learning_rate}) lower."
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.report.steps += 1
        self.report.training_losses.append(total)

    def _should_stop(self) -> bool:
        scores = self.reward_model.score_pairs(self.validation, self.config.micro_batch_pairs).double()
        loss = float(bradley_terry_loss(scores, self.config.margin)) / len(scores)
        point = ValidationPoint(self.report.steps, pair_accuracy(scores), loss)
        best = self.report.best
        self.misses = 0 if point.accuracy > best.accuracy else self.misses + 1
        if (point.accuracy, -point.loss) > (best.accuracy, -best.loss):
            self.report.best = point
            self.best_weights = [parameter.detach().clone() for parameter in self.parameters]
        self.report.history.append(point)
        return self.misses >= self.config.patience

    def _finished(self) -> TrainingReport:
        with torch.no_grad():
            for parameter, best in zip(self.parameters, self.best_weights, strict=True):
                parameter.copy_(best)
        self.report.padded_fraction = self.padded / max(1, self.tokens + self.padded)
        return self.report


def batches_of_like_length(lengths: Sequence[int], batch_size: int, rng: np.random.Generator) -> list[list[int]]:
    """Every index once, in batches of like length, the batches in random order; the longest first inside a batch."""
    order = rng.permutation(len(lengths))
    bucket = batch_size * BUCKET_BATCHES
    batches: list[list[int]] = []
    for start in range(0, len(order), bucket):
        near = sorted(order[start : start + bucket].tolist(), key=lambda i: -lengths[i])
        batches += [near[i : i + batch_size] for i in range(0, len(near), batch_size)]
    return [batches[i] for i in rng.permutation(len(batches))]


def choose_trainable(reward_model: RewardModel, layers: int | None) -> list[torch.nn.Parameter]:
    """Freeze all but the top `layers` layers, the final norm and the head (None: nothing is frozen); return the rest.

    Raises:
        ConfigError: more layers are asked for than there are, or the architecture has no list of layers.
    """
    model, body = reward_model.model, reward_model.body
    model.requires_grad_(layers is None)
    if layers is not None:
        stack = _layer_stack(body)
        if layers > len(stack):
            raise ConfigError(
                f"reward_model.train.trainable_layers={layers}, but {type(body).__name__} has {len(stack)}. "
                f"Set it to at most {len(stack)}, or leave it unset to train all."
            )
        for module in (*stack[len(stack) - layers :], *_children_after(body, stack), model.score):
            module.requires_grad_(True)
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _layer_stack(body: Any) -> Any:
    count = body.config.get_text_config().num_hidden_layers
    for module in body.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return module
    raise ConfigError(
        f"{type(body).__name__} has no list of {count} layers. Leave reward_model.train.trainable_layers unset."
    )


def _children_after(body: Any, stack: Any) -> list[torch.nn.Module]:
    """What the body applies after its layers: the final norm."""
    children = list(body.children())
    place = next((i for i, child in enumerate(children) if child is stack), len(children))
    return children[place + 1 :]


def _optimizer(
    reward_model: RewardModel, parameters: Sequence[torch.nn.Parameter], config: RewardModelTrainingConfig
) -> torch.optim.AdamW:
    """AdamW; matrices decay, norms do not; the head has its own rate."""
    head = {id(parameter) for parameter in reward_model.model.score.parameters()}
    body = [parameter for parameter in parameters if id(parameter) not in head]
    groups = [
        {"params": [p for p in body if p.ndim > 1], "lr": config.learning_rate, "weight_decay": config.weight_decay},
        {"params": [p for p in body if p.ndim <= 1], "lr": config.learning_rate, "weight_decay": 0.0},
        {
            "params": [p for p in parameters if id(p) in head],
            "lr": config.head_learning_rate or config.learning_rate,
            "weight_decay": config.weight_decay,
        },
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], betas=(0.9, 0.98))
