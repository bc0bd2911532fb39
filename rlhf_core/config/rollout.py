"""Generation of responses (G*)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rlhf_core.config.base import StrictConfig
from rlhf_core.config.rejection import RejectionConfig
from rlhf_core.config.schedules import StepSchedule, size_at
from rlhf_core.config.vllm import VllmConfig


class ExplorationConfig(StrictConfig):
    """Noise on the logits in the first iterations (P4)."""

    noise_std: float = Field(default=0.1, ge=0, description="standard deviation of Gaussian noise on each logit")
    iterations: int = Field(default=0, ge=0, description="first iterations that sample with noise; 0 is off")

    def noise_std_at(self, iteration: int) -> float:
        """The noise of an iteration, counted from 1; 0 where there is none."""
        return self.noise_std if iteration <= self.iterations else 0.0


class RolloutConfig(StrictConfig):
    """One iteration's sampling."""

    engine: Literal["transformers", "vllm"] = Field(default="transformers", description="generation engine")
    vllm: VllmConfig = Field(default_factory=VllmConfig)
    prompts_per_iteration: int = Field(default=32, ge=1, description="prompts drawn for one iteration")
    prompts_schedule: StepSchedule = Field(
        default=(), description="[first iteration, prompts_per_iteration from there on], rising (P8)"
    )
    samples_per_prompt: int = Field(default=1, ge=1, description="responses per prompt: the group's size")
    samples_schedule: StepSchedule = Field(
        default=(), description="[first iteration, samples_per_prompt from there on], rising (P9)"
    )
    max_prompt_tokens: int = Field(default=256, ge=1, description="longer prompts are reported and left out")
    max_new_tokens: int = Field(default=64, ge=1, description="length limit of a response")
    max_new_tokens_schedule: StepSchedule = Field(
        default=(),
        description="[first iteration, length limit from there on], from iteration 1, rising to at most max_new_tokens "
        "(K3); gates sample with max_new_tokens",
    )
    temperature: float = Field(default=1.0, gt=0, description="sampling temperature; log-probs use the same (K01)")
    top_p: float = Field(default=1.0, description="1 alone: sampling keeps the whole vocabulary (K02)")
    top_k: int | None = Field(default=None, description="None alone, for the same reason")
    stop_strings: tuple[str, ...] = Field(default=(), description="texts that end a response naturally, as EOS does")
    batch_size: int = Field(default=32, ge=1, description="responses generated together (vllm: on each server)")
    min_response_tokens: int = Field(
        default=5, ge=0, description="fewer tokens, EOS included, count as an early end (A5)"
    )
    exploration: ExplorationConfig = Field(default_factory=ExplorationConfig)
    rejection: RejectionConfig = Field(default_factory=RejectionConfig)

    def prompts_in(self, iteration: int) -> int:
        """Prompts drawn for that iteration (from 1)."""
        return size_at(self.prompts_schedule, iteration, default=self.prompts_per_iteration)

    def samples_in(self, iteration: int) -> int:
        """Responses per prompt in that iteration."""
        return size_at(self.samples_schedule, iteration, default=self.samples_per_prompt)

    def responses_per_call(self, wanted: int) -> int:
        """How many of the wanted responses the engine is asked for at once: servers batch by themselves."""
        return max(1, wanted) if self.engine == "vllm" else self.batch_size

    def max_new_tokens_in(self, iteration: int) -> int:
        """Length limit of a response in that iteration, where memory suffices."""
        return size_at(self.max_new_tokens_schedule, iteration, default=self.max_new_tokens)

    @property
    def most_prompts(self) -> int:
        """Prompts of the largest iteration."""
        return max([self.prompts_per_iteration, *(size for _, size in self.prompts_schedule)])

    def rollouts_in(self, iteration: int) -> int:
        return self.prompts_in(iteration) * self.samples_in(iteration)

    @model_validator(mode="after")
    def _support_is_whole(self) -> Self:
        if self.top_p != 1.0 or self.top_k is not None:
            raise ValueError(
                f"rollout.top_p={self.top_p} and rollout.top_k={self.top_k} cut the vocabulary that is sampled from, "
                "but the update's log-probs are over all of it: the ratio would not be 1 before the first step, and "
                "the gradient biased. Leave both out and lower rollout.temperature, which both sides follow."
            )
        return self

    @model_validator(mode="after")
    def _engine_can_do_it(self) -> Self:
        if self.engine == "vllm" and self.exploration.iterations and self.exploration.noise_std:
            raise ValueError(
                f"rollout.exploration.iterations={self.exploration.iterations} asks for noise on the logits, which a "
                "vLLM server cannot add per response and report the log-probs of. Set it to 0, or take "
                "rollout.engine=transformers."
            )
        needed = self.max_prompt_tokens + self.max_new_tokens
        if self.vllm.max_model_len is not None and self.vllm.max_model_len < needed:
            raise ValueError(
                f"rollout.vllm.max_model_len={self.vllm.max_model_len} is below max_prompt_tokens + max_new_tokens = "
                f"{needed}. Leave it out, or set it to {needed} or more."
            )
        return self

    @model_validator(mode="after")
    def _limits_agree(self) -> Self:
        if self.min_response_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_response_tokens={self.min_response_tokens} exceeds max_new_tokens={self.max_new_tokens}, so each "
                f"response would count as an early end. Set min_response_tokens to at most {self.max_new_tokens}."
            )
        return self

    @model_validator(mode="after")
    def _lengths_rise_to_the_limit(self) -> Self:
        steps = self.max_new_tokens_schedule
        if not steps:
            return self
        lengths = [length for _, length in steps]
        if steps[0][0] != 1 or lengths[0] < self.min_response_tokens or lengths[-1] > self.max_new_tokens:
            raise ValueError(
                f"max_new_tokens_schedule={[list(step) for step in steps]} must begin at iteration 1 and rise from "
                f"min_response_tokens={self.min_response_tokens} or more to max_new_tokens={self.max_new_tokens} or "
                f"less, as in [[1, {max(1, self.min_response_tokens, self.max_new_tokens // 2)}], "
                f"[20, {self.max_new_tokens}]]."
            )
        return self
