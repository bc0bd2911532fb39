"""The seams between stages and the engines that do the heavy work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from rlhf_core.data.refs import ControlState


@dataclass(frozen=True)
class GenerationRequest:
    """One response to sample; `seed` alone decides its randomness (G4)."""

    prompt_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Sampling:
    """How responses are sampled. The whole vocabulary is kept, so that log-probs are those of the policy (K02).

    With `noise_std` above 0 each token is drawn from logits with Gaussian noise of that standard deviation (P4). The
    log-probs are then those of this noisy distribution, at the temperature.
    """

    max_new_tokens: int
    temperature: float
    stop_strings: tuple[str, ...] = ()
    noise_std: float = 0.0


@dataclass(frozen=True)
class Generation:
    """A sampled response. `logprobs` are the engine's, at the sampling temperature, one per token, EOS included."""

    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    """`eos`, `length` or `stop_sequence`."""


class RolloutEngine(Protocol):
    """Samples responses from the current policy."""

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Generation]:
        """One generation per request, in the requests' order.

        Raises:
            NumericsError: the policy's logits are NaN or infinite; names the request (N05).
            OutOfMemory: memory ran out.
        """
        ...


TokenPair = tuple[Sequence[int], Sequence[int]]
"""A context and what is scored after it, as token ids."""


class TokenScorer(Protocol):
    """Log-likelihoods under the current policy; `max_length` tokens fit into its window."""

    max_length: int

    def loglikelihoods(
        self, pairs: Sequence[TokenPair], *, batch_size: int, advance: Callable[[int], None]
    ) -> list[tuple[float, bool]]:
        """`(log-likelihood in nats, is it the greedy continuation)` of each pair, in order.

        Args:
            pairs: neither part empty; one longer than `max_length + 1` loses tokens at the left.
            batch_size: rows per forward pass.
            advance: called with the number of pairs just done.

        Raises:
            DataError: an empty part, or a continuation that alone exceeds `max_length`.
        """
        ...


@dataclass(frozen=True)
class RolloutTensors:
    """Rollouts as tensors: prompts left-padded `[batch, prompt]`, responses right-padded `[batch, response]`."""

    prompt_ids: Tensor
    prompt_mask: Tensor
    response_ids: Tensor
    response_mask: Tensor


@dataclass(frozen=True)
class RolloutEvaluation:
    """What the trainer's models say of given rollouts; all `[batch, response]` float32, 0 at padding."""

    logprobs: Tensor
    ref_logprobs: Tensor
    entropy_nats: Tensor
    kl_exact_nats: Tensor
    values: Tensor
    bootstrap_values: Tensor
    """`[batch]`: the critic's value after the last response token."""


@dataclass(frozen=True)
class ExperienceTensors:
    """What one update learns from; see `SAMPLED_TENSORS`."""

    rollouts: RolloutTensors
    old_logprobs: Tensor
    ref_logprobs: Tensor
    old_values: Tensor
    advantages: Tensor
    """Whitened where the settings say so; 0 at padding."""
    returns: Tensor
    """Advantages before whitening, plus `old_values`."""
    importance: Tensor
    """Weight of each token's objective for the engine's mismatch (P1); 1 where it is not corrected."""
    policy_logprobs: Tensor | None = None
    """The trainer's own log-probs where `old_logprobs` are those of a noisy distribution that sampled (P4)."""


class WorkerGroup(RolloutEngine, TokenScorer, Protocol):
    """The trainer's ranks: policy, critic, reference and both optimizers. Samples and scores with the live policy."""

    def evaluate_rollouts(self, rollouts: RolloutTensors) -> RolloutEvaluation: ...

    def update(
        self,
        experience: ExperienceTensors,
        ptx_documents: Sequence[Sequence[int]],
        control: ControlState,
        *,
        iteration: int,
        seed: int,
    ) -> dict[str, float]:
        """One update (all epochs) in that iteration (from 1); returns metrics named `update/…`.

        `ptx_documents` are token lists, taken in order, `documents_per_update` for each optimizer step that has them.
        """
        ...

    def save(self, folder: Path, done: Callable[[Path], None] = lambda path: None) -> None:
        """Write `policy/`, `critic/` (model folders) and `trainer/` (optimizers, schedule, RNG) into `folder`.

        `done` may be told of files that are whole, so that the caller can begin with them; not of all of them.
        """
        ...

    def load(self, folder: Path) -> None:
        """Take the whole state from a folder that `save` wrote."""
        ...

    def micro_inference(self) -> list[float]:
        """Log-probs of the live policy on a fixed token sequence, see `models.micro_inference`."""
        ...

    def close(self) -> None: ...


class Scorer(Protocol):
    """Gives each response one raw score."""

    def score(self, rows: Sequence[Mapping[str, Any]]) -> list[float]:
        """`rows` have prompt, response, prompt_ids, response_ids, domain. A score may be NaN; it is excluded later."""
        ...
