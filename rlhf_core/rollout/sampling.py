"""From prompts to rows of sampled responses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from transformers import PreTrainedTokenizerBase

from rlhf_core.config.rollout import RolloutConfig
from rlhf_core.data.records import ROLLOUT_SCHEMA
from rlhf_core.engines.non_finite import NonFiniteLogits
from rlhf_core.engines.protocols import Generation, GenerationRequest, RolloutEngine, Sampling
from rlhf_core.errors import NumericsError
from rlhf_core.rollout.endings import classify_ending
from rlhf_core.seeding import response_seed


@dataclass(frozen=True)
class SampleOrigin:
    """What a sample's seed and record depend on, beside its prompt."""

    run_seed: int
    iteration: int
    policy_step: int


@dataclass(frozen=True)
class Place:
    """One response to be sampled: a prompt's row and which of its samples."""

    prompt: dict[str, Any]
    sample_index: int


class Sampler:
    """Samples places with one engine and one set of settings."""

    def __init__(
        self,
        engine: RolloutEngine,
        tokenizer: PreTrainedTokenizerBase,
        config: RolloutConfig,
        origin: SampleOrigin,
        advance: Callable[[int], None] | None = None,
    ) -> None:
        """Keep them; `advance(n)` is called when n more responses are there."""
        self.engine = engine
        self.tokenizer = tokenizer
        self.config = config
        self.origin = origin
        self.advance = advance or (lambda _: None)

    def sample(self, places: Sequence[Place], attempt: int) -> list[dict[str, Any]]:
        """One row of `ROLLOUT_SCHEMA` per place, in their order; `attempt` counts from 1 and changes the seeds.

        Raises:
            NumericsError: the policy's logits are NaN or infinite; names iteration and prompt (N05).
            OutOfMemory: memory ran out.
        """
        rows: dict[int, dict[str, Any]] = {}
        by_length = sorted(range(len(places)), key=lambda i: (-len(places[i].prompt["prompt_ids"]), i))
        step = self.config.responses_per_call(len(places))
        for start in range(0, len(places), step):
            indices = by_length[start : start + step]
            chosen = [places[i] for i in indices]
            seeds = [self._seed(place, attempt) for place in chosen]
            for i, seed, generation in zip(indices, seeds, self._generate(chosen, seeds), strict=True):
                rows[i] = self._row(places[i], generation, seed, attempt)
            self.advance(len(indices))
        return [rows[i] for i in range(len(places))]

    def _seed(self, place: Place, attempt: int) -> int:
        prompt_id = str(place.prompt["prompt_id"])
        return response_seed(self.origin.run_seed, prompt_id, self.origin.iteration, place.sample_index, attempt)

    def _generate(self, places: Sequence[Place], seeds: Sequence[int]) -> list[Generation]:
        config = self.config
        requests = [
            GenerationRequest(tuple(place.prompt["prompt_ids"]), seed)
            for place, seed in zip(places, seeds, strict=True)
        ]
        noise_std = config.exploration.noise_std_at(self.origin.iteration)
        sampling = Sampling(config.max_new_tokens, config.temperature, config.stop_strings, noise_std)
        try:
            return self.engine.generate(requests, sampling)
        except NonFiniteLogits as error:
            place = places[error.request_index]
            raise NumericsError(
                f"iteration {self.origin.iteration}, prompt {place.prompt['prompt_id']!r}, "
                f"sample {place.sample_index}: the policy of step {self.origin.policy_step} gave NaN or infinite "
                f"logits at response token {error.token_index}. Its weights are damaged, mostly by too high a "
                "learning rate; the run goes back to the last good checkpoint."
            ) from error

    def _row(self, place: Place, generation: Generation, seed: int, attempt: int) -> dict[str, Any]:
        response_ids = list(generation.response_ids)
        return {
            "iteration": self.origin.iteration,
            **{name: place.prompt[name] for name in ("prompt_id", "domain", "prompt", "prompt_ids")},
            "sample_index": place.sample_index,
            "response": str(self.tokenizer.decode(response_ids, skip_special_tokens=True)),
            "response_ids": response_ids,
            "engine_logprobs": list(generation.logprobs),
            "seed": seed,
            "finish_reason": generation.finish_reason,
            "ending": classify_ending(generation.finish_reason, len(response_ids), self.config.min_response_tokens),
            "attempts": attempt,
            "rejected_by": None,
            "policy_step": self.origin.policy_step,
        }


def places_of(prompts: pd.DataFrame, samples_per_prompt: int) -> list[Place]:
    """All places, prompt by prompt; a prompt drawn twice (column `repeat`) gets further sample indices."""
    return [
        Place(dict(row), int(row.get("repeat", 0)) * samples_per_prompt + sample)
        for row in prompts.to_dict("records")
        for sample in range(samples_per_prompt)
    ]


def rollout_frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """The rows as a frame with the columns of `ROLLOUT_SCHEMA`, also where there are none."""
    return pd.DataFrame(list(rows), columns=ROLLOUT_SCHEMA.names, dtype=object if not rows else None)
