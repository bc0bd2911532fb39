"""Sampling from a live Hugging Face causal model, without a server (G1).

The loop is this project's own: every response draws from its own generator, so that it depends on its seed alone (G4);
rows that are done leave the batch, so that nobody computes their padding; and log-probs come with the draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlhf_core.engines.exploration_noise import explored_logits
from rlhf_core.engines.inverse_cdf import draw_tokens
from rlhf_core.engines.key_value_cache import RoomyCache, rounded_width
from rlhf_core.engines.memory import BatchSize, in_batches
from rlhf_core.engines.non_finite import NonFiniteLogits
from rlhf_core.engines.packed_products import packed_products
from rlhf_core.engines.protocols import Generation, GenerationRequest, Sampling
from rlhf_core.engines.stop_strings import StopStrings
from rlhf_core.errors import DataError
from rlhf_core.models.packed_attention import next_logits, prompt_logits
from rlhf_core.models.precision import Autocast, autocast_context
from rlhf_core.numerics.logprobs import require_temperature


class TransformersRollout:
    """A `RolloutEngine` on a model that lives in this process, such as the trainer's policy."""

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch_size: int,
        autocast: Autocast = "off",
    ) -> None:
        """Keep the model as it is.

        Args:
            model: a causal language model in eval mode, prepared by `use_packed_attention`; its weights may change
                between calls.
            tokenizer: knows EOS, and decodes where stop texts are looked for.
            batch_size: responses generated together; fewer where memory runs out.
            autocast: bfloat16 runs the matrix products in bf16, where the processor has units for it.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.batch = BatchSize(batch_size)
        self.autocast: Autocast = autocast
        self.eos_ids = eos_token_ids(model, tokenizer)

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Generation]:
        """One generation per request, in the requests' order.

        Raises:
            DataError: a prompt has no token.
            ConfigError: the temperature is not above 0.
            NonFiniteLogits: the policy's logits are NaN or infinite; names the request.
            OutOfMemory: memory ran out with a single response.
        """
        require_temperature(sampling.temperature)
        for index, request in enumerate(requests):
            if not request.prompt_ids:
                raise DataError(f"request {index} (seed {request.seed}) has an empty prompt. Leave such prompts out.")
        by_length = sorted(range(len(requests)), key=lambda i: (len(requests[i].prompt_ids), requests[i].prompt_ids))
        by_length.reverse()
        found: dict[int, Generation] = {}

        def sample(places: range) -> None:
            drafts = [_Draft(index, requests[index]) for index in by_length[places.start : places.stop]]
            self._complete(drafts, sampling)
            found.update((draft.index, draft.generation) for draft in drafts)

        with torch.no_grad(), autocast_context(self.model.device, self.autocast), packed_products(self.model):
            work = f"sampling responses of up to {sampling.max_new_tokens} tokens"
            in_batches(len(by_length), self.batch, sample, work=work)
        return [found[index] for index in range(len(requests))]

    def _complete(self, drafts: list[_Draft], sampling: Sampling) -> None:
        """Sample one batch to its end; the drafts take the tokens."""
        stops = StopStrings(sampling.stop_strings, self.tokenizer)
        uniforms = torch.from_numpy(np.stack([draft.uniforms(sampling.max_new_tokens) for draft in drafts]))
        uniforms = uniforms.to(self.model.device)
        batch = _Batch(self.model, drafts, sampling.max_new_tokens)
        logits = batch.read_prompts()
        for step in range(sampling.max_new_tokens):
            rows = batch.rows
            logits = explored_logits(logits, [drafts[row].request.seed for row in rows], step, sampling.noise_std)
            tokens, logprobs, totals = draw_tokens(
                logits, uniforms[torch.tensor(rows, device=uniforms.device), step], sampling.temperature
            )
            # One copy from the device a step: a token's end, its log-prob and N05's check come together.
            found = torch.stack([tokens.double(), logprobs.double(), totals]).T.tolist()
            for row, (_, _, total) in zip(rows, found, strict=True):
                if not math.isfinite(total):
                    raise NonFiniteLogits(drafts[row].index, step)
            for row, (token, logprob, _) in zip(rows, found, strict=True):
                self._take(drafts[row], int(token), logprob, stops)
            alive = [place for place, row in enumerate(rows) if not drafts[row].is_done]
            if not alive or step + 1 == sampling.max_new_tokens:
                return
            tokens = batch.keep(alive, tokens)
            logits = batch.read_tokens(tokens)

    def _take(self, draft: _Draft, token: int, logprob: float, stops: StopStrings) -> None:
        draft.response_ids.append(token)
        draft.logprobs.append(logprob)
        if token in self.eos_ids:
            draft.finish_reason, draft.is_done = "eos", True
        elif stops.is_reached(draft.response_ids):
            draft.finish_reason, draft.is_done = "stop_sequence", True


def eos_token_ids(model: Any, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The tokens that end a response: the tokenizer's EOS, and special tokens that the generation settings name.

    A model's configuration may carry another family's default EOS id, which is a plain word here; it does not count.
    """
    settings = getattr(model, "generation_config", None)
    listed = getattr(settings, "eos_token_id", None)
    candidates = set(listed if isinstance(listed, (list, tuple)) else [] if listed is None else [listed])
    special = set(tokenizer.all_special_ids) | {i for i, t in tokenizer.added_tokens_decoder.items() if t.special}
    own = cast("int | None", tokenizer.eos_token_id)
    return frozenset(int(i) for i in candidates & special) | frozenset([] if own is None else [own])


@dataclass
class _Draft:
    """A response in the making."""

    index: int
    request: GenerationRequest
    response_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    finish_reason: str = "length"
    is_done: bool = False

    def uniforms(self, count: int) -> np.ndarray:
        """One number in [0, 1) for each response token; the first ones are the same whatever `count` is."""
        return np.random.Generator(np.random.PCG64(self.request.seed)).random(count)

    @property
    def generation(self) -> Generation:
        return Generation(tuple(self.response_ids), tuple(self.logprobs), self.finish_reason)


class _Batch:
    """The rows that are still being sampled, and their cache."""

    def __init__(self, model: Any, drafts: Sequence[_Draft], max_new_tokens: int) -> None:
        self.model = model
        self.rows = list(range(len(drafts)))
        prompts = [draft.request.prompt_ids for draft in drafts]
        self._distinct = list(dict.fromkeys(prompts))
        place = {prompt: number for number, prompt in enumerate(self._distinct)}
        self._source = torch.tensor([place[prompt] for prompt in prompts], device=model.device)
        self._lengths = [len(prompt) for prompt in prompts]
        self._positions = torch.tensor(self._lengths, device=model.device)
        self._room = rounded_width(max(self._lengths) + max_new_tokens)
        self._cache = RoomyCache(model.config.get_text_config().num_hidden_layers)

    def read_prompts(self) -> Tensor:
        """Run the distinct prompts, laid one after another; return the logits `[rows, vocab]` that follow them."""
        device = self.model.device
        lengths = [len(prompt) for prompt in self._distinct]
        ids = torch.tensor([token for prompt in self._distinct for token in prompt], device=device)
        counted = torch.tensor(lengths, device=device)
        starts = counted.cumsum(0) - counted
        positions = torch.arange(len(ids), device=device) - starts.repeat_interleave(counted)
        logits = prompt_logits(self.model, ids, positions, lengths, self._cache)
        index = starts[:, None] + torch.minimum(torch.arange(max(lengths), device=device), counted[:, None] - 1)
        self._cache.spread(index[self._source], self._room)
        return logits[self._source]

    def read_tokens(self, tokens: Tensor) -> Tensor:
        """Run one more token `[rows]` of each row; return the logits `[rows, vocab]` that follow."""
        self._cache.aim(self._positions, max(self._lengths))
        is_attended = torch.arange(self._cache.width, device=tokens.device) <= self._positions[:, None]
        logits = next_logits(self.model, tokens, self._positions, is_attended, self._cache)
        self._positions = self._positions + 1
        self._lengths = [length + 1 for length in self._lengths]
        return logits

    def keep(self, alive: Sequence[int], tokens: Tensor) -> Tensor:
        """Drop all places but `alive`: the last alive rows move into the holes. Return the tokens of what is left."""
        count = len(alive)
        if count == len(tokens):
            return tokens
        kept = set(alive)
        holes = [place for place in range(count) if place not in kept]
        order = list(range(count))
        movers = [place for place in alive if place >= count]
        for hole, mover in zip(holes, movers, strict=True):
            order[hole] = mover
        index = torch.tensor(order, device=tokens.device)
        targets = torch.tensor(holes, dtype=torch.long, device=tokens.device)
        self._cache.move_rows(torch.tensor(movers, dtype=torch.long, device=tokens.device), targets, max(self._lengths))
        self._positions = self._positions[index]
        self.rows = [self.rows[place] for place in order]
        self._lengths = [self._lengths[place] for place in order]
        return tokens[index]
