"""Generation and the filter of invalid texts (G*)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rlhf_core.config.base import StrictConfig


class RejectionConfig(StrictConfig):
    """Invalid or repetitive text is rejected before it is scored (G3)."""

    policy: Literal["resample", "drop"] = Field(default="resample", description="what happens to a rejected response")
    max_attempts: int = Field(default=3, ge=1, le=20, description="samples drawn for one place before it is given up")
    min_response_tokens: int = Field(default=1, ge=0, description="shorter responses are rejected")
    max_repeated_ngram_fraction: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="share of repeated 4-grams above which a text is repetitive; 1 never rejects",
    )
    banned_patterns: tuple[str, ...] = Field(default=(), description="regular expressions that reject a response")


class ExplorationConfig(StrictConfig):
    """Noise on the logits in the first iterations (P4)."""

    noise_std: float = Field(default=0.1, ge=0, description="standard deviation of Gaussian noise on each logit")
    iterations: int = Field(default=0, ge=0, description="first iterations that sample with noise; 0 is off")

    def noise_std_at(self, iteration: int) -> float:
        """The noise of an iteration, counted from 1; 0 where there is none."""
        return self.noise_std if iteration <= self.iterations else 0.0


class RolloutConfig(StrictConfig):
    """One iteration's sampling."""

    engine: Literal["transformers"] = Field(default="transformers", description="generation engine")
    prompts_per_iteration: int = Field(default=32, ge=1, description="prompts drawn for one iteration")
    samples_per_prompt: int = Field(default=1, ge=1, description="responses per prompt")
    max_prompt_tokens: int = Field(default=256, ge=1, description="longer prompts are reported and left out")
    max_new_tokens: int = Field(default=64, ge=1, description="length limit of a response")
    temperature: float = Field(default=1.0, gt=0, description="sampling temperature; log-probs use the same (K01)")
    stop_strings: tuple[str, ...] = Field(default=(), description="texts that end a response naturally, as EOS does")
    batch_size: int = Field(default=32, ge=1, description="responses generated together")
    min_response_tokens: int = Field(
        default=5, ge=0, description="fewer tokens, EOS included, count as an early end (A5)"
    )
    exploration: ExplorationConfig = Field(default_factory=ExplorationConfig)
    rejection: RejectionConfig = Field(default_factory=RejectionConfig)

    @property
    def rollouts_per_iteration(self) -> int:
        return self.prompts_per_iteration * self.samples_per_prompt

    @model_validator(mode="after")
    def _limits_agree(self) -> Self:
        if self.min_response_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_response_tokens={self.min_response_tokens} exceeds max_new_tokens={self.max_new_tokens}, so each "
                f"response would count as an early end. Set min_response_tokens to at most {self.max_new_tokens}."
            )
        return self
