"""Small frozen records that travel between stages: paths, checksums, counts and metrics; never tensors."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class Ref(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StageRef(Ref):
    """A finished stage's result: a folder whose MANIFEST.json lists its files and their SHA-256."""

    stage: str
    path: Path
    sha256: str = Field(description="of the manifest, which holds the files' hashes")
    rows: int = 0
    metrics: dict[str, float] = Field(default_factory=dict[str, float])


class ControlState(Ref):
    """What the controllers have set; travels with the policy that it steers."""

    kl_coef: float = Field(gt=0, description="β")
    kl_average_nats: float | None = Field(
        default=None, description="moving average of KL per token; None before the first batch"
    )
    kl_controller: dict[str, float | None] = Field(
        default_factory=dict[str, float | None], description="state of β's controller; empty before the first batch"
    )
    ptx_coef: float = Field(ge=0, description="γ of PPO-ptx; 0 where ptx is off")
    is_reward_stalled: bool = Field(default=False, description="the last gate found the reward rising too slowly")
    learning_rate_factor: float = Field(default=1.0, gt=0, description="of both schedules; falls after a rollback")
    max_new_tokens_cuts: int = Field(
        default=0, ge=0, description="times that lack of memory shortened the next responses and that are not made up"
    )


class CheckpointRef(Ref):
    """A saved checkpoint. `step` is the iteration that made it; step 0 is the SFT start."""

    step: int = Field(ge=0)
    path: Path
    control: ControlState
    metrics: dict[str, float] = Field(default_factory=dict[str, float])


class BenchmarkScore(Ref):
    """One benchmark's result with its interval, and the drop against the baseline on the same items."""

    name: str
    accuracy: float
    low: float
    high: float
    items: int
    drop: float = 0.0
    drop_low: float = 0.0
    drop_high: float = 0.0
    margin_drop: float = 0.0
    margin_drop_low: float = 0.0
    margin_drop_high: float = 0.0
    p_value: float = 1.0


class EvaluationResult(Ref):
    """One evaluation of a policy: benchmarks, perplexity and the reward on held-out prompts."""

    step: int
    benchmarks: tuple[BenchmarkScore, ...] = ()
    perplexity: float | None = None
    held_out_reward: float
    held_out_reward_std: float
    reward_gain: float = Field(
        default=0.0, description="held_out_reward above the baseline's, in its standard deviations"
    )
    reward_gain_low: float = Field(default=0.0, description="of its interval, by a bootstrap that pairs prompts")
    reward_gain_high: float = 0.0
    held_out_kl_nats: float = 0.0
    path: Path


class RewardModelResult(Ref):
    """A validated reward model."""

    path: Path | None
    accuracy: float | None = None
    accuracy_low: float | None = None
    accuracy_high: float | None = None
    length_correlation: float | None = None
    is_accepted: bool = True
    reasons: tuple[str, ...] = ()
