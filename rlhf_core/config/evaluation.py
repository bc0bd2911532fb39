"""Benchmarks, perplexity and held-out reward (E*)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rlhf_core.config.base import StrictConfig


class BenchmarkConfig(StrictConfig):
    """One benchmark, run by lm-evaluation-harness: a hub task by name, or a local file in a known format."""

    name: str = Field(pattern=r"^[a-z0-9_]+$", description="name in tables; a hub task's name where `path` is not set")
    format: Literal["hub_task", "mmlu_csv", "hellaswag_jsonl"] = Field(default="hub_task")
    path: str | None = Field(default=None, description="local file or folder, relative to data.root")
    items: int | None = Field(default=500, ge=10, description="size of the fixed, stratified subset; None: all")
    answers: Literal["letters", "texts"] = Field(
        default="letters",
        description="mmlu_csv: options listed and a letter scored, or, for small models, each option's text scored",
    )
    fewshot: int = Field(default=0, ge=0, le=25)

    @model_validator(mode="after")
    def _path_fits_format(self) -> Self:
        if (self.format == "hub_task") == (self.path is not None):
            raise ValueError(
                f"benchmark {self.name!r}: format={self.format!r} with path={self.path!r}. "
                "Give `path` for mmlu_csv and hellaswag_jsonl, and none for hub_task."
            )
        return self


class EvaluationConfig(StrictConfig):
    """What is measured before training and at each gate (E1, E2)."""

    benchmarks: tuple[BenchmarkConfig, ...] = Field(
        default=(), description="none: the ability gate is off, and lint says so"
    )
    held_out_rollouts: int = Field(default=64, ge=2, description="responses on held-out prompts for the reward's mean")
    batch_size: int = Field(default=16, ge=1, description="sequences per forward pass")
    seed: int = Field(default=1234, description="of the fixed subset and the held-out samples; not the run's seed")


class DecisionConfig(StrictConfig):
    """The gate's policy (C1, C2, C4)."""

    tolerated_drop: float = Field(default=0.01, ge=0, lt=1, description="mean benchmark drop that ptx_coef answers")
    rollback_drop: float = Field(default=0.03, gt=0, le=1, description="drop that triggers a rollback")
    confidence: float = Field(
        default=0.95, gt=0.5, lt=1, description="a drop counts when the paired interval excludes 0 at this level"
    )
    smoothing: float = Field(
        default=0.5, ge=0, lt=1, description="weight of the past in the moving average of benchmark scores"
    )
    slow_reward_gain: float = Field(
        default=0.02, ge=0, description="gain per round, in baseline std, below which reward is slow"
    )
    flat_kl_nats: float = Field(default=0.002, ge=0, description="KL below which the policy counts as not moving")
    ptx_minimum: float = Field(default=0.01, gt=0)
    ptx_maximum: float = Field(default=0.5, gt=0)
    max_rollbacks: int = Field(default=3, ge=0)
    kl_limit_nats: float = Field(default=0.1, gt=0, description="held-out KL per token at which a gate rolls back (C3)")
    learning_rate_factor: float = Field(default=0.5, gt=0, le=1, description="of the actor after a rollback (K4)")
    kl_coef_factor: float = Field(default=2.0, ge=1, description="of β after a rollback (K4)")

    @model_validator(mode="after")
    def _drops_are_ordered(self) -> Self:
        if self.tolerated_drop >= self.rollback_drop:
            raise ValueError(
                f"decisions.tolerated_drop={self.tolerated_drop} must lie below rollback_drop={self.rollback_drop}."
            )
        return self
