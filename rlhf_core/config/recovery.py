"""What a run does about errors and lost processes (F3)."""

from __future__ import annotations

from pydantic import Field

from rlhf_core.config.base import StrictConfig


class RecoveryConfig(StrictConfig):
    """Retries of a stage after a transient error; the later ones with gentler settings."""

    retries: int = Field(
        default=3, ge=0, le=10, description="of one stage at one step, over all processes; then the run fails"
    )
    delays_seconds: tuple[float, ...] = Field(
        default=(2.0, 10.0, 30.0), min_length=1, description="before each retry; the last one repeats"
    )
    delay_jitter: float = Field(default=0.3, ge=0, description="spread of the delays, as a share; 0: none")
    hold_iterations: int = Field(
        default=5, ge=0, description="iterations after the failed one in which changed settings stay in force"
    )
    max_lost: int = Field(
        default=5, ge=0, description="times that the leading process may be lost without finishing an iteration"
    )
