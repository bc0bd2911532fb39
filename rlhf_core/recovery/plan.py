"""With which settings the next attempt is made: a pure function of the configuration and the ledger (F3).

First retry: the same settings, from the last valid checkpoint. Second, where it failed again near the same step: the
learning rates × 0.5, β × 2, and micro-batches ÷ 2, which leaves the mini-batch and so the gradient as they are. Third:
less memory by offload, ZeRO and recomputed activations as well. Memory that runs out is answered by smaller
micro-batches first, at once, and never by another learning rate or β.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf_core.config.run import RunConfig
from rlhf_core.data.refs import ControlState
from rlhf_core.recovery.classify import ANSWERED_BY_SETTINGS
from rlhf_core.recovery.ledger import Attempt, attempts_near, failures_in_a_row

MAX_STEP = 3
LEARNING_RATE_FACTOR = 0.5
KL_COEF_FACTOR = 2.0


@dataclass(frozen=True)
class Measures:
    """What is done against failures; two of them add up by the stronger of each."""

    micro_batch_halvings: int = 0
    is_gentler: bool = False
    """Lower learning rates and a larger β."""
    saves_memory: bool = False

    def with_others(self, other: Measures) -> Measures:
        return Measures(
            max(self.micro_batch_halvings, other.micro_batch_halvings),
            self.is_gentler or other.is_gentler,
            self.saves_memory or other.saves_memory,
        )


@dataclass(frozen=True)
class Plan:
    """The settings of one attempt."""

    config: RunConfig
    """For the engines; stages' keys stay those of the run's own configuration."""
    step: int = 0
    """0: nothing failed near this step; 1 to 3: the retry's step."""
    learning_rate_factor: float = 1.0
    kl_coef_factor: float = 1.0
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Setting → value, of what differs from the run's own configuration."""
    words: str = ""

    def applied_to(self, control: ControlState) -> ControlState:
        """What steers this attempt. It is never stored: the next checkpoint keeps the controllers' own values."""
        kl_coef = control.kl_coef
        if self.kl_coef_factor != 1:
            kl_coef = max(kl_coef, min(kl_coef * self.kl_coef_factor, self.config.kl.maximum))
        rate = control.learning_rate_factor * self.learning_rate_factor
        return control.model_copy(update={"kl_coef": kl_coef, "learning_rate_factor": rate})

    def row(self) -> dict[str, Any]:
        """What the ledger keeps of it."""
        return {"step": self.step, "changes": dict(self.changes), "words": self.words}


def plan(base: RunConfig, ledger: Sequence[Attempt], *, stage: str, iteration: int) -> Plan:
    """Return the settings for the next attempt at `stage`.

    Args:
        base: the run's own configuration.
        ledger: all attempts before this one, in order.
        stage: the stage about to start; it matters before the first iteration, where stages have nothing in common.
        iteration: 0 before the first.
    """
    hold = base.recovery.hold_iterations
    streak, held = _history(ledger, stage, iteration, hold=hold)
    lasting = [(measures, until) for measures, until in held if iteration <= until]
    if streak:
        lasting.append((_measures(streak), streak[-1].iteration + hold))
    wanted = Measures()
    for measures, _ in lasting:
        wanted = wanted.with_others(measures)
    settings = _settings(base, wanted)
    factors = {"learning_rate_factor": LEARNING_RATE_FACTOR, "kl_coef_factor": KL_COEF_FACTOR}
    factors = factors if wanted.is_gentler else {}
    is_retry = failures_in_a_row(ledger, stage, iteration) > 0
    step = min(max(len(streak), 1), MAX_STEP) if is_retry else 0
    return Plan(
        config=_with(base, settings) if settings else base,
        step=step,
        changes={**factors, **settings},
        words=_words(step, wanted, settings, until=max((until for _, until in lasting), default=None)),
        **factors,
    )


def is_last(base: RunConfig, ledger: Sequence[Attempt], *, stage: str, iteration: int) -> bool:
    """Whether the attempt about to start is the last that `recovery.retries` allows, counted over all processes."""
    return failures_in_a_row(ledger, stage, iteration) >= base.recovery.retries


def _history(
    ledger: Sequence[Attempt], stage: str, iteration: int, *, hold: int
) -> tuple[list[Attempt], list[tuple[Measures, int]]]:
    """Failures near the step that count, and `(measures, last iteration)` of earlier ones.

    A later iteration finished ends a streak, and its measures last. So does giving up, after which nothing lasts: who
    resumes then has mended the cause.
    """
    streak: list[Attempt] = []
    held: list[tuple[Measures, int]] = []
    for one in ledger:
        if not iteration and (one.stage, one.iteration) != (stage, 0):
            continue
        if one.gave_up:
            streak, held = [], []
        elif one.outcome == "error" and one.error_class in ANSWERED_BY_SETTINGS:
            if iteration and not one.iteration:
                continue
            streak.append(one)
        elif streak and _ends_streak(one, streak[-1]):
            held.append((_measures(streak), streak[-1].iteration + hold))
            streak = []
    return streak, held


def _ends_streak(one: Attempt, failed: Attempt) -> bool:
    if not failed.iteration:
        return one.outcome == "ok"
    return one.is_progress and one.iteration > failed.iteration


def _measures(streak: Sequence[Attempt]) -> Measures:
    memory = sum(one.error_class == "out_of_memory" for one in streak)
    count, is_memory_alone = len(streak), memory == len(streak)
    return Measures(
        micro_batch_halvings=min(2, memory) or int(count >= 2),
        is_gentler=count >= 2 and not is_memory_alone,
        saves_memory=count >= MAX_STEP,
    )


def _settings(base: RunConfig, wanted: Measures) -> dict[str, Any]:
    """Setting → new value, of what changes."""
    settings: dict[str, Any] = {}
    micro = base.ppo.micro_batch_rollouts
    for _ in range(wanted.micro_batch_halvings):
        micro = _half(micro)
    settings["ppo.micro_batch_rollouts"] = micro
    if wanted.saves_memory:
        settings |= _memory_settings(base)
    return {name: value for name, value in settings.items() if value != _value(base, name)}


def _memory_settings(base: RunConfig) -> dict[str, Any]:
    """One notch less memory: activations are computed again, and ranks share and offload more."""
    settings: dict[str, Any] = {"model.gradient_checkpointing": True}
    cluster = base.cluster
    if cluster.engine == "inline":
        return settings  # one process has no ranks to share with, and plain torch does not offload
    settings |= {"cluster.zero_stage": min(3, cluster.zero_stage + 1), "cluster.offload_optimizer": True}
    if cluster.offload_optimizer:
        settings |= {"cluster.zero_stage": 3, "cluster.offload_parameters": True}
    return settings


def _half(size: int) -> int:
    """The largest divisor up to half of it, so that it still divides every mini-batch."""
    return next((n for n in range(size // 2, 0, -1) if size % n == 0), 1)


def _value(config: RunConfig, name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _with(base: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """The configuration with these settings, checked like any other."""
    content = base.model_dump()
    for name, value in settings.items():
        *parents, last = name.split(".")
        place = content
        for part in parents:
            place = place[part]
        place[last] = value
    return RunConfig.model_validate(content)


def _words(step: int, wanted: Measures, settings: Mapping[str, Any], *, until: int | None) -> str:
    parts: list[str] = []
    if wanted.is_gentler:
        parts.append(f"learning rates × {LEARNING_RATE_FACTOR:g}, β × {KL_COEF_FACTOR:g}")
    parts += [f"{name} = {value}" for name, value in settings.items()]
    what = "; ".join(parts) or "the same settings"
    if step:
        return f"retry step {step}: {what}, from the last valid checkpoint"
    return f"still in force up to iteration {until}: {what}" if parts else ""


def steps_taken(ledger: Sequence[Attempt], last: Attempt) -> str:
    """What was tried before a stage was given up with the attempt `last`, in words."""
    before = [one for one in ledger if one.attempt < last.attempt]
    tried = [*attempts_near(before, last.stage, last.iteration), last]
    failures = sum(one.is_retryable_failure for one in tried)
    words = "; ".join(dict.fromkeys(one.words for one in tried if one.step)) or "no retry was allowed"
    return f"failed attempts: {failures} ({words})"
