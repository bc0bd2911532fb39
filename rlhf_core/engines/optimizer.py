"""AdamW with its schedule, its own gradient clipping and its refusal of gradients that are not finite (P5, P6, N07)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlhf_core.config.ppo import OptimizerConfig
from rlhf_core.control.learning_rate import constant, inverse_sqrt_rule, late_rise, warmup_cosine
from rlhf_core.errors import CheckpointError
from rlhf_core.numerics.reductions import AllReduce, identity

_LATE_SHARE = 0.7
"""Share of a run's steps after which a late rise may begin."""
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step did."""

    grad_norm: float
    """Before clipping."""
    learning_rate: float
    """The one that this step used."""
    is_clipped: bool
    is_skipped: bool
    """The gradient was not finite: parameters, moments and schedule are as they were."""


class ScheduledOptimizer(ABC):
    """AdamW of one model. `steps` counts the steps taken, `skipped_in_row` those refused since the last one.

    `stalled_since` is the step at which the reward was found to stall, None while it moves.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig, *, total_steps: int, hidden_size: int = 1) -> None:
        """Take all parameters that need a gradient.

        Args:
            model: its parameters are updated in place.
            config: rates, schedule and limits.
            total_steps: length of the cosine, warm-up included.
            hidden_size: of the model, for the rule `inverse_sqrt`.
        """
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._shapes = {name: tuple(p.shape) for name, p in self._parameters.items()}
        self._config, self._total_steps = config, total_steps
        self.steps = 0
        self.skipped_in_row = 0
        self.stalled_since: int | None = None
        self._peak = config.learning_rate
        if config.peak == "inverse_sqrt":
            count = sum(parameter.numel() for parameter in model.parameters())
            self._peak = inverse_sqrt_rule(count, hidden_size, cap=config.learning_rate)

    def note_stall(self, is_stalled: bool) -> None:
        """Say whether the reward stalls; the late rise starts from the first step at which it does (P6)."""
        if not is_stalled:
            self.stalled_since = None
        elif self.stalled_since is None:
            self.stalled_since = self.steps

    def learning_rate(self, factor: float = 1.0) -> float:
        """The rate that the next step uses."""
        config = self._config
        if config.late_rise:
            late_from = int(_LATE_SHARE * self._total_steps)
            factor *= late_rise(
                self.steps,
                stalled_since=self.stalled_since,
                late_from=late_from,
                rise_steps=max(1, self._total_steps - late_from),
                max_rise=config.late_rise,
            )
        if config.schedule == "constant":
            return factor * constant(self.steps, peak=self._peak, warmup_steps=config.warmup_steps)
        return factor * warmup_cosine(
            self.steps,
            peak=self._peak,
            warmup_steps=config.warmup_steps,
            total_steps=self._total_steps,
            floor_fraction=config.floor_fraction,
        )

    @abstractmethod
    def backward(self, loss: Tensor) -> None:
        """Add the loss's gradients to those held; every rank's share counts."""

    @abstractmethod
    def step(self, learning_rate_factor: float = 1.0, all_reduce: AllReduce = identity) -> StepResult:
        """Clip the gradients, take one step and release them; take none where a gradient is NaN or infinite.

        Args:
            learning_rate_factor: of the schedule's rate.
            all_reduce: sums over ranks; all of them then step, clip or refuse alike.
        """

    @abstractmethod
    def discard_gradients(self) -> None:
        """Release gradients without a step."""

    @abstractmethod
    def moments(self) -> dict[str, Tensor]:
        """The optimizer's tensors as `<parameter>/<moment>`, in full; empty before the first step."""

    @abstractmethod
    def restore(
        self, moments: Mapping[str, Tensor], *, steps: int, skipped_in_row: int, stalled_since: int | None
    ) -> None:
        """Take moments (checked by `require_fitting`) and counters; what is not in `moments` has none."""

    def require_fitting(self, moments: Mapping[str, Tensor], source: str) -> None:
        """Refuse moments that belong to another model.

        Raises:
            CheckpointError: a name is foreign, a moment is missing, or a shape differs; names `source`.
        """
        held = {key.rsplit("/", 1)[0] for key in moments}
        foreign = sorted(held - self._shapes.keys())
        if foreign:
            raise CheckpointError(
                f"{source} holds moments of {foreign[0]!r} ({len(foreign)} foreign names); expected parameters such as "
                f"{next(iter(self._shapes))!r}. It belongs to another model; resume with the configuration that "
                "wrote it."
            )
        for name in held:
            shape = self._shapes[name]
            for moment in MOMENTS:
                expected, found = () if moment == "step" else shape, moments.get(f"{name}/{moment}")
                if found is None or tuple(found.shape) != expected:
                    seen = "nothing" if found is None else f"shape {tuple(found.shape)}"
                    raise CheckpointError(
                        f"{source}: expected {name}/{moment} of shape {expected}, found {seen}. "
                        "The checkpoint is damaged or foreign; go on from an earlier one."
                    )

    def _count(self, *, is_finite: bool) -> None:
        if is_finite:
            self.steps += 1
            self.skipped_in_row = 0
        else:
            self.skipped_in_row += 1


def adamw(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.AdamW:
    """Torch's AdamW; weight decay spares vectors (norms, biases)."""
    listed = list(parameters)
    matrices = [p for p in listed if p.ndim > 1]
    vectors = [p for p in listed if p.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        fused=True,
    )


class ScheduledAdamW(ScheduledOptimizer):
    """In plain torch, on whole parameters."""

    def __init__(self, model: nn.Module, config: OptimizerConfig, *, total_steps: int, hidden_size: int = 1) -> None:
        """See `ScheduledOptimizer`."""
        super().__init__(model, config, total_steps=total_steps, hidden_size=hidden_size)
        self._adamw = adamw(self._parameters.values(), config)

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    @torch.no_grad()
    def step(self, learning_rate_factor: float = 1.0, all_reduce: AllReduce = identity) -> StepResult:
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        if all_reduce is not identity:
            _sum_over_ranks(gradients, all_reduce)
        norm = float(torch.nn.utils.get_total_norm(gradients))
        rate, limit = self.learning_rate(learning_rate_factor), self._config.max_grad_norm
        is_finite, is_clipped = math.isfinite(norm), norm > limit
        if is_finite:
            if is_clipped:
                torch.nn.utils.clip_grads_with_norm_(self._parameters.values(), limit, torch.tensor(norm))
            for group in self._adamw.param_groups:
                group["lr"] = rate
            self._adamw.step()
        self._count(is_finite=is_finite)
        self._adamw.zero_grad(set_to_none=True)
        return StepResult(
            grad_norm=norm, learning_rate=rate, is_clipped=is_finite and is_clipped, is_skipped=not is_finite
        )

    def discard_gradients(self) -> None:
        self._adamw.zero_grad(set_to_none=True)

    def moments(self) -> dict[str, Tensor]:
        state = cast("Mapping[Tensor, Mapping[str, Tensor]]", self._adamw.state)
        return {
            f"{name}/{moment}": state[parameter][moment]
            for name, parameter in self._parameters.items()
            if parameter in state
            for moment in MOMENTS
        }

    def restore(
        self, moments: Mapping[str, Tensor], *, steps: int, skipped_in_row: int, stalled_since: int | None
    ) -> None:
        state = cast("dict[Tensor, dict[str, Tensor]]", self._adamw.state)
        state.clear()
        for name, parameter in self._parameters.items():
            if f"{name}/step" in moments:
                state[parameter] = {
                    moment: moments[f"{name}/{moment}"].to(parameter.device, copy=True) for moment in MOMENTS
                }
        self.steps, self.skipped_in_row, self.stalled_since = steps, skipped_in_row, stalled_since


def _sum_over_ranks(gradients: Sequence[Tensor], all_reduce: AllReduce) -> None:
    """Replace each gradient by its sum over ranks, in one reduction."""
    flat = all_reduce(torch.cat([gradient.reshape(-1) for gradient in gradients]))
    for gradient, total in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(total.view_as(gradient))
