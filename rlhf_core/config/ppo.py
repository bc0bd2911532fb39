"""PPO (P*), advantages (A*) and the KL controller (K1)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rlhf_core.config.base import StrictConfig
from rlhf_core.config.schedules import StepSchedule, size_at

MAX_LEARNING_RATE = 0.1
CRITIC_RATE_FACTOR = 5.0
"""The critic's learning rate in units of the actor's, where it is not set (A6)."""


class ScheduleConfig(StrictConfig):
    """What both optimizers have but the rate: AdamW with warm-up and decay (P6)."""

    schedule: Literal["cosine", "constant"] = Field(default="cosine", description="after the warm-up")
    peak: Literal["given", "inverse_sqrt"] = Field(
        default="given",
        description="inverse_sqrt: the peak is 3e-6 · sqrt(parameters) / sqrt(hidden size), capped at learning_rate",
    )
    late_rise: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="greatest rise in the last 30 % of the steps while the reward stalls, as a share",
    )
    warmup_steps: int = Field(default=10, ge=0, description="optimizer steps of linear warm-up")
    floor_fraction: float = Field(default=0.1, ge=0, le=1, description="share of the peak at the end of the cosine")
    betas: tuple[float, float] = Field(default=(0.9, 0.95))
    epsilon: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=0.5, gt=0, description="gradient norm limit (P5)")


class OptimizerConfig(ScheduleConfig):
    """An optimizer with its rate."""

    learning_rate: float = Field(default=1e-6, ge=0, le=MAX_LEARNING_RATE, description="peak learning rate")


class CriticConfig(ScheduleConfig):
    """The critic's optimizer and loss; `PPOConfig.critic_optimizer` has the rate that is used."""

    learning_rate: float | None = Field(
        default=None, ge=0, le=MAX_LEARNING_RATE, description="peak learning rate; None: 5 × the actor's (A6)"
    )
    max_grad_norm: float = Field(default=1.0, gt=0)
    value_clip_range: float = Field(default=0.2, gt=0, description="clip of the value around the old one (A6)")
    normalise_values: bool = Field(
        default=False, description="the critic learns returns in units of their running mean and spread (A6)"
    )


class PtxConfig(StrictConfig):
    """PPO-ptx (P3): loss = loss_ppo + ptx_coef × cross-entropy on general text."""

    enabled: bool = Field(default=True, description="needs data.ptx")
    coef: float = Field(default=0.05, ge=0.01, le=0.5, description="start of ptx_coef, the γ of PPO-ptx")
    every_updates: int = Field(default=1, ge=1, description="a pretraining batch in every k-th update")
    documents_per_update: int = Field(default=2, ge=1)
    max_tokens: int = Field(default=128, ge=8, description="tokens read of a document")


class EpochStopConfig(StrictConfig):
    """When the epochs over one batch end early (P7)."""

    max_kl_nats: float = Field(default=0.02, gt=0, description="KL(old‖new) per token")
    max_clip_fraction: float = Field(default=0.5, gt=0, le=1)
    min_mean_abs_advantage: float = Field(default=0.01, ge=0)


class KlShapingConfig(StrictConfig):
    """KL in the token rewards (R6)."""

    estimator: Literal["k1", "k2", "k3", "exact"] = Field(default="k1", description="of the penalty")
    token_limit_nats: float | None = Field(
        default=0.5, gt=0, description="hard truncation where a token's KL exceeds it; None: off"
    )
    token_limit_reward: float = Field(default=-10.0, le=0, description="KL reward of such a token")


class LossKlConfig(StrictConfig):
    """KL to the reference as a term of the loss, beside the one in the rewards (P4)."""

    coef: float | None = Field(
        default=None, ge=0, description="None: 0.001 where the policy starts from SFT, 0 for a base model (model.start)"
    )
    estimator: Literal["k1", "k2", "k3"] = Field(
        default="k3", description="of this term, and of β's where it acts here"
    )
    reverse_coef: float = Field(
        default=0.0, ge=0, description="of KL(reference‖policy), which keeps the policy's support wide; usual: 0.05"
    )


class PPOConfig(StrictConfig):
    """One PPO update over an iteration's rollouts."""

    actor: OptimizerConfig = Field(default_factory=OptimizerConfig)
    critic: CriticConfig = Field(default_factory=CriticConfig)
    epochs: int = Field(default=4, ge=1, description="passes over the rollouts of one iteration")
    mini_batch_rollouts: int = Field(default=8, ge=1, description="rollouts per optimizer step")
    mini_batch_schedule: StepSchedule = Field(
        default=(),
        description="[first iteration, mini_batch_rollouts from there on], rising; memory stays as it is (P8)",
    )
    micro_batch_rollouts: int = Field(default=8, ge=1, description="rollouts per forward pass")
    clip_range: float = Field(default=0.2, gt=0, lt=1)
    clip_range_high: float | None = Field(
        default=None, gt=0, description="upper side of the clip, apart (DAPO's clip-higher); None: clip_range"
    )
    clip_range_policy: Literal["fixed", "narrow", "widen"] = Field(
        default="fixed",
        description="clip_range · (1 + tanh(∓(KL - 0.01))): narrower or wider as the moving average of KL grows (P2)",
    )
    dual_clip: float | None = Field(
        default=None, gt=1, description="lower bound of the objective at negative advantages, in advantages; usual: 3"
    )
    importance_cap: float | None = Field(
        default=None,
        ge=1,
        description="truncated importance sampling for the engine's log-probs (P1); None: off; usual: 2",
    )
    discount: float = Field(default=1.0, gt=0, le=1)
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    gae_chunk_tokens: int | None = Field(
        default=None, ge=1, description="compute advantages of long responses in chunks of so many tokens (A2)"
    )
    gae_lambda_policy: Literal["fixed", "by_length", "staged"] = Field(
        default="fixed",
        description="by_length: 0.95 to 128 tokens, to 0.85 at 512; staged: 0.9, 0.95, 0.98 by thirds of the run",
    )
    advantage_whitening: Literal["whiten", "scale", "none"] | None = Field(
        default=None,
        description=(
            "over the response tokens (A3): mean 0 and std 1; std 1 with the mean kept, so scaled; as they are. "
            "None: whiten, but for grpo and rloo, which compare within groups"
        ),
    )
    entropy_coef: float | Literal["log_vocab"] = Field(
        default=0.0, description="at least 0; log_vocab: 0.01 · log(vocabulary size) (P4)"
    )
    loss_kl: LossKlConfig = Field(default_factory=LossKlConfig)
    ptx: PtxConfig = Field(default_factory=PtxConfig)
    epoch_stop: EpochStopConfig = Field(default_factory=EpochStopConfig)
    kl_shaping: KlShapingConfig = Field(default_factory=KlShapingConfig)
    max_skipped_updates: int = Field(
        default=3, ge=1, description="non-finite updates in a row before the run rolls back (N07)"
    )

    def mini_batch_in(self, iteration: int) -> int:
        """Rollouts per optimizer step in that iteration (from 1)."""
        return size_at(self.mini_batch_schedule, iteration, default=self.mini_batch_rollouts)

    @property
    def critic_optimizer(self) -> OptimizerConfig:
        """The critic's optimizer, whose rate is 5 × the actor's where none is set."""
        rate = self.critic.learning_rate
        if rate is None:
            rate = CRITIC_RATE_FACTOR * self.actor.learning_rate
        shared = {name: getattr(self.critic, name) for name in ScheduleConfig.model_fields}
        return OptimizerConfig(learning_rate=rate, **shared)

    @model_validator(mode="after")
    def _critic_rate_is_in_range(self) -> Self:
        if self.critic.learning_rate is None and CRITIC_RATE_FACTOR * self.actor.learning_rate > MAX_LEARNING_RATE:
            raise ValueError(
                f"ppo.critic.learning_rate is not set, and {CRITIC_RATE_FACTOR:g} × ppo.actor.learning_rate="
                f"{self.actor.learning_rate:g} exceeds {MAX_LEARNING_RATE:g}. Set ppo.critic.learning_rate, or lower "
                "the actor's."
            )
        return self

    @model_validator(mode="after")
    def _sizes_nest(self) -> Self:
        for size in (self.mini_batch_rollouts, *(size for _, size in self.mini_batch_schedule)):
            if size % self.micro_batch_rollouts:
                fits = [n for n in range(1, size + 1) if size % n == 0]
                raise ValueError(
                    f"ppo.micro_batch_rollouts={self.micro_batch_rollouts} does not divide the mini-batch of {size} "
                    f"(ppo.mini_batch_rollouts or its schedule). Set micro_batch_rollouts to one of {fits}."
                )
        return self

    @model_validator(mode="after")
    def _coefficients_hold(self) -> Self:
        if self.entropy_coef != "log_vocab" and self.entropy_coef < 0:
            raise ValueError(f"ppo.entropy_coef={self.entropy_coef} is negative; set it to 0 or more, or to log_vocab.")
        if self.clip_range_high is not None and self.clip_range_high < self.clip_range:
            raise ValueError(
                f"ppo.clip_range_high={self.clip_range_high} lies below ppo.clip_range={self.clip_range}. "
                "Clip-higher widens the upper side; set it to at least clip_range, such as 0.28, or leave it out."
            )
        return self


class KlControllerConfig(StrictConfig):
    """Adaptive β, once per PPO batch (K1)."""

    kind: Literal["adaptive", "proportional", "pid", "fixed"] = Field(
        default="adaptive",
        description="adaptive: × 2 or ÷ 2 outside a band; proportional: Ziegler et al.'s clipped error; pid",
    )
    horizon_rollouts: int = Field(
        default=10_000, ge=1, description="proportional: rollouts over which a full error changes β by its size"
    )
    proportional_gain: float = Field(default=0.2, ge=0, description="pid: of the error KL / target - 1, kept to ±1")
    integral_gain: float = Field(default=0.1, gt=0)
    derivative_gain: float = Field(default=0.0, ge=0)
    start: float = Field(default=0.05, gt=0, description="first kl_coef")
    target_nats: float = Field(default=0.02, gt=0, description="KL to the reference per token")
    smoothing: float = Field(default=0.5, ge=0, lt=1, description="weight of the past in the moving average of KL")
    minimum: float = Field(default=0.01, gt=0)
    maximum: float = Field(default=0.5, gt=0)

    @model_validator(mode="after")
    def _bounds_hold(self) -> Self:
        if not self.minimum <= self.start <= self.maximum:
            raise ValueError(
                f"kl.start={self.start} lies outside [{self.minimum}, {self.maximum}]. "
                "Set kl.minimum ≤ kl.start ≤ kl.maximum."
            )
        return self
