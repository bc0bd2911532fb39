"""What a run does before memory runs out (F4)."""

from __future__ import annotations

from pydantic import Field

from rlhf_core.config.base import StrictConfig


class MemoryConfig(StrictConfig):
    """Responses get shorter while memory is scarce."""

    watch: bool = Field(default=True, description="false never shortens responses for lack of memory")
    high_water: float = Field(
        default=0.85, gt=0, le=1, description="share of the memory in use above which the next responses are shorter"
    )
    shrink: float = Field(default=0.75, gt=0, lt=1, description="factor on rollout.max_new_tokens for each such case")
    min_new_tokens: int = Field(default=16, ge=16, description="max_new_tokens is never made less")
