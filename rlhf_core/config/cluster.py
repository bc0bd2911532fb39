"""Where the trainer's ranks run: in this process, or as Ray actors on one machine or many."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rlhf_core.config.base import StrictConfig


class ClusterConfig(StrictConfig):
    """One configuration serves a laptop and a cluster: only this section differs."""

    engine: Literal["inline", "ray"] = Field(
        default="inline", description="inline: one process, plain torch; ray: a group of actors, each a DeepSpeed rank"
    )
    address: str | None = Field(
        default=None, description="of an existing Ray cluster (`auto`, host:port, ray://…); none starts a local Ray"
    )
    ranks: int = Field(default=1, ge=1, description="ranks of the trainer")
    cpus_per_rank: float = Field(default=1.0, gt=0, description="cores that a rank reserves; also its threads")
    gpus_per_rank: float | None = Field(
        default=None, ge=0, description="GPUs that a rank reserves; none: one where compute.device finds a GPU"
    )
    placement: Literal["pack", "spread"] = Field(
        default="pack", description="pack fills a machine first; spread takes as many machines as there are"
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        default=0, description="DeepSpeed ZeRO: 1 shards optimizer states, 2 also gradients, 3 also parameters"
    )
    offload_optimizer: bool = Field(default=False, description="optimizer states in host memory (ZeRO 1 and more)")
    offload_parameters: bool = Field(default=False, description="parameters in host memory (ZeRO 3)")
    start_seconds: float = Field(default=300.0, gt=0, description="time for all ranks to come up")
    collective_seconds: float = Field(default=600.0, gt=0, description="longest wait of a rank for the others")
    stall_seconds: float = Field(
        default=900.0, gt=0, description="work whose step counters stand still for so long is ended as stalled"
    )

    @property
    def sharding_stage(self) -> int:
        """The ZeRO stage in effect: one rank has nobody to share with, and flat copies would only cost it time."""
        is_offloaded = self.offload_optimizer or self.offload_parameters
        return self.zero_stage if self.ranks > 1 or is_offloaded else 0

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.engine == "inline" and self.ranks > 1:
            raise ValueError(
                f"cluster.ranks={self.ranks} needs cluster.engine=ray; inline is a single process. Set one of them."
            )
        if self.engine == "inline" and (self.zero_stage or self.offload_optimizer or self.offload_parameters):
            raise ValueError(
                "cluster.zero_stage, offload_optimizer and offload_parameters are DeepSpeed's: set cluster.engine=ray."
            )
        if self.offload_optimizer and self.zero_stage < 1:
            raise ValueError("cluster.offload_optimizer needs cluster.zero_stage 1 or more.")
        if self.offload_parameters and self.zero_stage < 3:
            raise ValueError("cluster.offload_parameters needs cluster.zero_stage=3.")
        return self
