"""Which policy-gradient method learns from the rollouts (P9)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core.config.base import StrictConfig

Algorithm = Literal["ppo", "grpo", "rloo", "reinforce_plus_plus"]


class DynamicSamplingConfig(StrictConfig):
    """DAPO's answer to groups whose rewards are all equal: they teach nothing and are sampled again."""

    enabled: bool = Field(default=False)
    max_attempts: int = Field(
        default=3, ge=1, le=20, description="further tries before a uniform group is left as it is"
    )


class AlgorithmConfig(StrictConfig):
    """How advantages arise; the clipped objective, its mini-batches and its stops are those of `ppo` for all kinds."""

    kind: Algorithm = Field(
        default="ppo",
        description=(
            "ppo: critic and GAE; grpo: reward against its group; rloo: against the others of its group; "
            "reinforce_plus_plus: discounted rewards to go. Only ppo has a critic"
        ),
    )
    kl_placement: Literal["reward", "loss"] | None = Field(
        default=None,
        description=(
            "where β acts: in the token rewards (its optimum is known in closed form) or as a loss term; "
            "None: loss for grpo, reward for the others"
        ),
    )
    group_baseline: Literal["mean", "leave_one_out"] = Field(
        default="mean", description="grpo: what a reward is held against"
    )
    scale_by_group_std: bool = Field(
        default=True, description="grpo: divide by the group's spread; it weighs the reward anew against the KL"
    )
    subtract_group_mean: bool = Field(
        default=False, description="reinforce_plus_plus: rewards against their group's mean"
    )
    loss_aggregation: Literal["token", "sequence"] = Field(
        default="token",
        description="mean over all tokens (DAPO), or over responses of each one's mean (GRPO's first form)",
    )
    dynamic_sampling: DynamicSamplingConfig = Field(default_factory=DynamicSamplingConfig)

    @property
    def has_critic(self) -> bool:
        return self.kind == "ppo"

    @property
    def is_by_group(self) -> bool:
        """Whether several responses to one prompt are compared."""
        return self.kind in ("grpo", "rloo") or (self.kind == "reinforce_plus_plus" and self.subtract_group_mean)

    @property
    def kl_in_reward(self) -> bool:
        """Whether β acts in the token rewards."""
        placement = self.kl_placement or ("loss" if self.kind == "grpo" else "reward")
        return placement == "reward"
