"""Metrics of one update, gathered over its mini-batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from rlhf_core.engines.optimizer import StepResult

GRAD_NORM_SMOOTHING = 0.9
"""Weight of the past, per update, in the moving averages of the gradient norms."""

_MAXIMA = ("update/ratio_max",)
_FIRST = ("update/ratio_first_deviation",)


class Tally:
    """Token-weighted means over mini-batches, of the update and of its newest epoch. `mini_batches` are those done."""

    def __init__(self) -> None:
        self.mini_batches = 0
        self._sums: dict[str, float] = defaultdict(float)
        self._weights: dict[str, float] = defaultdict(float)
        self._epoch_sums: dict[str, float] = defaultdict(float)
        self._epoch_weights: dict[str, float] = defaultdict(float)
        self._single: dict[str, float] = {}
        self._steps: dict[str, list[StepResult]] = {"actor": [], "critic": []}
        self._real_tokens = 0
        self._computed_tokens = 0

    def start_epoch(self) -> None:
        """Forget the means of the epoch before."""
        self._epoch_sums.clear()
        self._epoch_weights.clear()

    def add_means(self, metrics: Mapping[str, float], weight: float) -> None:
        """Add a mini-batch's means; `weight` is its number of tokens."""
        for name, value in metrics.items():
            if name in _FIRST:
                self._single.setdefault(name, value)
            elif name in _MAXIMA:
                self._single[name] = max(value, self._single.get(name, value))
            else:
                for sums, weights in ((self._sums, self._weights), (self._epoch_sums, self._epoch_weights)):
                    sums[name] += value * weight
                    weights[name] += weight

    def add_step(self, model: str, result: StepResult) -> None:
        """Count an optimizer step of `actor` or `critic`."""
        self._steps[model].append(result)

    def add_tokens(self, *, real: int, computed: int) -> None:
        """Count tokens of the rollouts, and those that went through the model for them."""
        self._real_tokens += real
        self._computed_tokens += computed

    def epoch_mean(self, name: str, *, default: float) -> float:
        """Mean of the epoch so far; `default` where every mini-batch was skipped."""
        weight = self._epoch_weights.get(name, 0.0)
        return self._epoch_sums[name] / weight if weight else default

    def metrics(self, *, epochs: int, stop_reason: str) -> dict[str, float]:
        """All metrics of the update; learning rates are those of the last step. No step taken, no norm."""
        result = {name: self._sums[name] / weight for name, weight in self._weights.items() if weight}
        result |= self._single
        for model, steps in self._steps.items():
            if not steps:
                continue  # an algorithm without a critic
            taken = [step for step in steps if not step.is_skipped]
            result[f"update/{model}_learning_rate"] = steps[-1].learning_rate
            if taken:
                result[f"update/{model}_clipped_share"] = sum(step.is_clipped for step in taken) / len(taken)
                result[f"update/{model}_grad_norm"] = sum(step.grad_norm for step in taken) / len(taken)
        everything = [step for steps in self._steps.values() for step in steps]
        result["update/epochs"] = float(epochs)
        result["update/optimizer_steps"] = float(sum(not step.is_skipped for step in self._steps["actor"]))
        result["update/skipped_updates"] = float(sum(step.is_skipped for step in everything))
        result["update/padded_fraction"] = 1.0 - self._real_tokens / max(1, self._computed_tokens)
        result[f"update/stop_{stop_reason}"] = 1.0
        return result


def grad_norm_averages(before: Mapping[str, float], update: Mapping[str, float]) -> dict[str, float]:
    """Exponential moving averages of both models' gradient norms after an update, as metrics (P5).

    They go on from the metrics of the checkpoint that was updated, so a resumed run or a rollback has the right ones.

    Args:
        before: metrics of that checkpoint; without an average the update's own norm starts it.
        update: metrics of the update; a model that took no step has no norm in it and keeps its average.
    """
    averages: dict[str, float] = {}
    for model in ("actor", "critic"):
        name, norm = f"update/{model}_grad_norm_average", update.get(f"update/{model}_grad_norm")
        average = before.get(name, norm)
        if average is not None:
            new = average if norm is None else norm
            averages[name] = GRAD_NORM_SMOOTHING * average + (1 - GRAD_NORM_SMOOTHING) * new
    return averages
