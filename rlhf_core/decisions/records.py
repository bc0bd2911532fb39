"""What a gate saw, and what was decided."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from rlhf_core.data.refs import BenchmarkScore, ControlState, EvaluationResult, Ref

Kind = Literal["continue", "adjust_ptx", "roll_back", "stop"]


class GateRecord(Ref):
    """One round's gate. `decided` is None for the round that is being decided."""

    round_number: int = Field(ge=1)
    step: int = Field(ge=0, description="checkpoint that was judged")
    control: ControlState = Field(description="what the controllers had set for it")
    benchmarks: tuple[BenchmarkScore, ...] = ()
    perplexity: float | None = None
    reward_gain: float = Field(description="held-out reward above the baseline's, in its standard deviations")
    reward_gain_high: float = Field(description="upper end of its interval")
    kl_nats: float = Field(description="mean KL to the reference per held-out token")
    decided: Kind | None = None

    @property
    def non_finite(self) -> tuple[str, ...]:
        """Names of the measurements that are NaN or infinite."""
        values = {"held-out reward": self.reward_gain, "held-out KL": self.kl_nats}
        if self.perplexity is not None:
            values["perplexity"] = self.perplexity
        return tuple(name for name, value in values.items() if not math.isfinite(value))


class Decision(Ref):
    """What follows from a gate."""

    kind: Kind
    reasons: tuple[str, ...] = Field(min_length=1, description="in words, with the numbers")
    promote: bool
    control: ControlState = Field(description="for what follows")


def gate_record(round_number: int, control: ControlState, evaluation: EvaluationResult) -> GateRecord:
    """The record of an evaluation that is to be decided."""
    return GateRecord(
        round_number=round_number,
        step=evaluation.step,
        control=control,
        benchmarks=evaluation.benchmarks,
        perplexity=evaluation.perplexity,
        reward_gain=evaluation.reward_gain,
        reward_gain_high=evaluation.reward_gain_high,
        kl_nats=evaluation.held_out_kl_nats,
    )
