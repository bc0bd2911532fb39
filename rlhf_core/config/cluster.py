"""Which workers train, and how their memory is spread."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core.config.base import StrictConfig


class ClusterConfig(StrictConfig):
    """The training ranks."""

    engine: Literal["inline", "ray"] = Field(
        default="inline", description="inline: one process; ray: a group of ranks, on one machine or several"
    )
    ranks: int = Field(default=1, ge=1, description="training ranks")
    zero_stage: int = Field(
        default=0, ge=0, le=3, description="ray: what ranks share: 1 optimizer, 2 gradients, 3 parameters as well"
    )
    offload_optimizer: bool = Field(default=False, description="ray: keep the optimizer's state in CPU memory")
    offload_parameters: bool = Field(default=False, description="ray: keep parameters in CPU memory")
