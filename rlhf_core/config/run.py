"""A run's whole configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from rlhf_core.config.algorithm import AlgorithmConfig
from rlhf_core.config.base import StrictConfig
from rlhf_core.config.cluster import ClusterConfig
from rlhf_core.config.data import DataConfig
from rlhf_core.config.evaluation import DecisionConfig, EvaluationConfig
from rlhf_core.config.memory import MemoryConfig
from rlhf_core.config.models import ComputeConfig, ModelConfig
from rlhf_core.config.notifications import NotificationConfig
from rlhf_core.config.ppo import KlControllerConfig, PPOConfig
from rlhf_core.config.recovery import RecoveryConfig
from rlhf_core.config.reward import RewardConfig, RewardModelConfig
from rlhf_core.config.rollout import RolloutConfig


class CheckpointConfig(StrictConfig):
    """Retention and verification (F2)."""

    keep_last: int = Field(default=2, ge=1, description="newest checkpoints kept, beside promoted and best")
    verify: Literal["now", "background", "hashes"] = Field(
        default="now",
        description="now: loaded and asked before it counts; background: in a process of its own while the run goes "
        "on, and the gate waits for it; hashes: sizes, hashes and shapes alone, the rest when a run starts from it",
    )


class ValidationConfig(StrictConfig):
    """What a failed expectation does (D2)."""

    on_failure: Literal["stop", "quarantine"] = Field(
        default="quarantine", description="quarantine keeps bad rows apart and goes on"
    )
    max_quarantined_fraction: float = Field(default=0.5, ge=0, le=1, description="more bad rows than this stop the run")


class RunConfig(StrictConfig):
    """One run, read from one YAML file and kept in the run folder."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="name of the run's folder")
    home: Path = Field(default=Path("runs"), description="folder that holds run folders")
    seed: int = Field(default=0, ge=0, lt=2**31)
    rounds: int = Field(default=2, ge=1, description="gates in the run")
    iterations_per_round: int = Field(default=5, ge=1)
    data: DataConfig
    model: ModelConfig
    compute: ComputeConfig = Field(default_factory=ComputeConfig)
    cluster: ClusterConfig = Field(default_factory=ClusterConfig)
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    reward: RewardConfig = Field(default_factory=RewardConfig)
    reward_model: RewardModelConfig = Field(default_factory=RewardModelConfig)
    algorithm: AlgorithmConfig = Field(default_factory=AlgorithmConfig)
    ppo: PPOConfig = Field(default_factory=PPOConfig)
    kl: KlControllerConfig = Field(default_factory=KlControllerConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    decisions: DecisionConfig = Field(default_factory=DecisionConfig)
    validation: ValidationConfig = Field(default_factory=ValidationConfig)
    checkpoints: CheckpointConfig = Field(default_factory=CheckpointConfig)
    memory: MemoryConfig = Field(default_factory=MemoryConfig)
    recovery: RecoveryConfig = Field(default_factory=RecoveryConfig)
    notifications: NotificationConfig = Field(default_factory=NotificationConfig)

    @property
    def iterations(self) -> int:
        return self.rounds * self.iterations_per_round

    @property
    def folder(self) -> Path:
        return self.home / self.name

    def optimizer_steps_in(self, iteration: int) -> int:
        """Optimizer steps of one iteration (from 1) when no epoch stops early."""
        return self.ppo.epochs * -(-self.rollout.rollouts_in(iteration) // self.ppo.mini_batch_in(iteration))

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of the whole run when no epoch stops early."""
        return sum(self.optimizer_steps_in(iteration) for iteration in range(1, self.iterations + 1))

    @property
    def loss_kl_coef(self) -> float:
        """Coefficient of the loss-level KL, beside β (P4)."""
        coef = self.ppo.loss_kl.coef
        if coef is not None:
            return coef
        return 0.001 if self.model.start == "sft" else 0.0

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.ppo.ptx.enabled and not self.data.ptx:
            raise ValueError(
                "ppo.ptx.enabled is true but data.ptx names no text. Give data.ptx, or set ppo.ptx.enabled=false."
            )
        if self.reward.scorer == "reward_model" and self.reward_model.path is None and not self.data.preferences.train:
            raise ValueError(
                "no reward model: give reward_model.path, or data.preferences.train to train one, "
                "or reward.scorer=callable with reward.callable.path."
            )
        by_group = self.algorithm.is_by_group or self.algorithm.dynamic_sampling.enabled
        if by_group or self.reward.normalisation == "group":
            self._require_groups()
        if self.data.general_fraction and not self.data.sft:
            raise ValueError("data.general_fraction > 0 needs data.sft, where the general prompts come from.")
        return self

    @model_validator(mode="after")
    def _beta_stays_positive(self) -> Self:
        most = max(self.rollout.rollouts_in(iteration) for iteration in range(1, self.iterations + 1))
        if self.kl.kind == "proportional" and most >= 5 * self.kl.horizon_rollouts:
            raise ValueError(
                f"kl.horizon_rollouts={self.kl.horizon_rollouts} with {most} rollouts an iteration may make β zero or "
                f"negative at low KL. Set the horizon above {most / 5:g}; 10000 is usual."
            )
        return self

    def _require_groups(self) -> None:
        smallest = min(self.rollout.samples_in(iteration) for iteration in range(1, self.iterations + 1))
        if smallest < 2:
            raise ValueError(
                f"algorithm.kind={self.algorithm.kind!r} or reward.normalisation={self.reward.normalisation!r} holds "
                "responses to a prompt against each other, but rollout.samples_per_prompt (or its schedule) is "
                f"{smallest}. Set it to 2 or more; 8 is usual."
            )
