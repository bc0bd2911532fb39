"""Which models are loaded, and in which precision."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat

from rlhf_core.config.base import StrictConfig


class ModelConfig(StrictConfig):
    """The policy's start (SFT model); reference and critic come from it."""

    policy: str = Field(min_length=1, description="folder or hub name of the SFT model")
    start: Literal["sft", "base"] = Field(
        default="sft", description="what the policy starts from; a base model gets no loss-level KL by default (P4)"
    )
    revision: str | None = Field(default=None, description="hub revision")
    critic_init: Literal["policy", "reward_model"] = Field(
        default="policy", description="body that the critic starts from (A6)"
    )
    value_head: Literal["flat", "hierarchical"] = Field(
        default="flat",
        description="hierarchical: a token's value gains from the sentence and from the whole text so far (A6)",
    )
    value_head_weights: tuple[NonNegativeFloat, NonNegativeFloat] = Field(
        default=(0.3, 0.1), description="what the values of sentence and whole text count in the hierarchical head"
    )
    reference_dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="precision of the frozen reference"
    )
    autocast: Literal["off", "bfloat16"] = Field(
        default="off",
        description="bfloat16: matrix products in bf16 (a CPU without bf16 units: float32), weights stay float32",
    )
    gradient_checkpointing: bool = Field(default=False, description="recompute activations in backward, to save memory")


class ComputeConfig(StrictConfig):
    """Where and how wide it runs."""

    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto takes a GPU when there is one")
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads of this process; None leaves torch's choice"
    )
    deterministic: bool = Field(
        default=True, description="deterministic kernels; a fixed seed gives the same run (P13)"
    )
