"""From a text to a reward (R*) and the reward model (W*)."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from rlhf_core.config.base import StrictConfig


class PenaltyConfig(StrictConfig):
    """Penalties in units of the normalised reward (R5)."""

    early_end: float = Field(default=-2.0, le=0, description="added where EOS comes before min_response_tokens")
    truncation: float = Field(default=-1.0, le=0, description="added where truncated_policy is `penalty`")
    unsafe: float = Field(
        default=-10.0,
        le=0,
        description="added where a response matches unsafe_patterns or a filter's policy is penalise",
    )


class CallableScorerConfig(StrictConfig):
    """A Python callable `f(prompts: list[str], responses: list[str]) -> list[float]` by import path."""

    path: str = Field(pattern=r"^[\w.]+:[\w.]+$", description="module:function")


class RewardConfig(StrictConfig):
    """Scores → normalised, clipped, penalised reward."""

    scorer: Literal["reward_model", "callable"] = Field(default="reward_model", description="who scores a response")
    callable: CallableScorerConfig | None = Field(default=None, description="with scorer: callable")
    raw_clip: float | None = Field(
        default=None, gt=0, description="raw scores are clipped to ±raw_clip before normalisation (R2); None: off"
    )
    normalisation: Literal["batch", "running", "calibrated", "group", "none"] = Field(
        default="batch", description="R1; group: over the responses to the same prompt"
    )
    adaptive_temperature: bool = Field(
        default=False,
        description="divide scores by their batch's spread, kept within [0.1, 1], before normalising (R4)",
    )
    unsafe_patterns: tuple[str, ...] = Field(
        default=(), description="regular expressions; a response that matches one gets penalties.unsafe (R5)"
    )
    clip: float = Field(default=2.0, gt=0, description="normalised rewards are clipped to ±clip (R2)")
    truncated_policy: Literal["bootstrap", "penalty", "kl_only"] = Field(default="bootstrap", description="A5")
    early_policy: Literal["penalty", "invalid"] = Field(default="penalty", description="A5")
    score_truncated: bool | None = Field(
        default=None,
        description=(
            "score a text that the length limit cut as if it ended there (a reward model reads EOS after it, as in its "
            "training); false: it is not scored and gets the batch's mean, 0 after R1. None: a reward model does not "
            "score it (A5); a callable does, for it may be a rule that also judges unfinished text"
        ),
    )
    penalties: PenaltyConfig = Field(default_factory=PenaltyConfig)
    batch_size: int = Field(default=16, ge=1, description="texts scored together")

    @property
    def scores_truncated(self) -> bool:
        """Whether the scorer is asked about cut texts."""
        return self.scorer == "callable" if self.score_truncated is None else self.score_truncated

    @field_validator("unsafe_patterns")
    @classmethod
    def _patterns_compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(
                    f"{pattern!r} is no regular expression ({error}). Escape special characters, as in 'a\\.b'."
                ) from error
            if not pattern:
                raise ValueError("an empty pattern matches every response. Leave it out.")
        return patterns

    @model_validator(mode="after")
    def _temperature_fits(self) -> Self:
        if self.adaptive_temperature and self.normalisation in ("running", "calibrated"):
            raise ValueError(
                f"reward.adaptive_temperature divides each batch by its own spread, so statistics over batches "
                f"(reward.normalisation={self.normalisation!r}) no longer fit. Set it to batch, group or none."
            )
        return self

    @model_validator(mode="after")
    def _callable_is_given(self) -> Self:
        if (self.scorer == "callable") != (self.callable is not None):
            raise ValueError(
                f"reward.scorer={self.scorer!r} and reward.callable={'set' if self.callable else 'not set'} clash: "
                "set reward.callable.path=module:function exactly when reward.scorer is 'callable'."
            )
        return self


class RewardModelTrainingConfig(StrictConfig):
    """Bradley-Terry training from the SFT model (W1)."""

    trainable_layers: int | None = Field(
        default=None, ge=0, description="top transformer layers trained with the head; None: all"
    )
    learning_rate: float = Field(default=2e-5, gt=0, le=1e-1)
    head_learning_rate: float | None = Field(
        default=None, gt=0, description="of the value head; None: as learning_rate"
    )
    weight_decay: float = Field(default=0.01, ge=0)
    epochs: int = Field(default=1, ge=1)
    batch_pairs: int = Field(default=16, ge=1, description="pairs per optimizer step")
    micro_batch_pairs: int = Field(default=8, ge=1, description="pairs per forward pass")
    margin: float = Field(
        default=0.0, ge=0, description="score difference that the loss asks of a pair beyond 0, in units of the score"
    )
    warmup_fraction: float = Field(default=0.1, ge=0, lt=1)
    max_pairs: int | None = Field(default=None, ge=2, description="training pairs used; None: all")
    max_tokens: int = Field(default=256, ge=8, description="last tokens of a dialogue that the model reads")
    validation_fraction: float = Field(
        default=0.05, gt=0, lt=0.5, description="of the training pairs, for early stopping"
    )
    validations_per_epoch: int = Field(default=4, ge=1)
    patience: int = Field(default=4, ge=1, description="validations without a better accuracy before training stops")


class RewardModelGateConfig(StrictConfig):
    """What a reward model must show before it is used (W2)."""

    min_accuracy: float = Field(
        default=0.55, ge=0.5, le=1, description="held-out accuracy; the interval's lower end must exceed 0.5"
    )
    max_length_correlation: float = Field(
        default=0.9, gt=0, le=1, description="|Spearman| of score and response length"
    )
    max_pairs: int | None = Field(default=None, ge=10, description="held-out pairs scored; None: all")
    confidence: float = Field(default=0.95, gt=0.5, lt=1, description="of all intervals")


class RewardModelConfig(StrictConfig):
    """A given reward model, or one trained here."""

    path: str | None = Field(
        default=None, description="folder or hub name of a sequence-classification model; None: train one"
    )
    train: RewardModelTrainingConfig = Field(default_factory=RewardModelTrainingConfig)
    gate: RewardModelGateConfig = Field(default_factory=RewardModelGateConfig)
