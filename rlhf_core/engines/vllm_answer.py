"""From a request to vLLM's words, and from its answer back; an answer that is not whole is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core.engines.protocols import Generation, GenerationRequest, Sampling
from rlhf_core.engines.vllm_client import BadAnswer

_IMPOSSIBLE_NATS = -9999.0
"""vLLM writes this where a log-prob is minus infinity."""


class NonFiniteAnswer(BadAnswer):
    """A log-prob of an answer is NaN or infinite.

    Attributes:
        token_index: response tokens before it.
    """

    def __init__(self, token_index: int) -> None:
        self.token_index = token_index
        super().__init__(f"the log-prob of response token {token_index} is NaN or infinite.")


@dataclass(frozen=True)
class Vocabulary:
    """What is needed to judge an answer's tokens."""

    size: int
    eos_ids: frozenset[int]


def completion_body(request: GenerationRequest, sampling: Sampling, vocabulary: Vocabulary) -> dict[str, Any]:
    """The completion request of one response.

    Everything that cuts or bends the distribution is switched off by name, since a server may have defaults of its own
    (K02). Which tokens end a response is said too: a model's configuration may name others than the tokenizer.
    """
    return {
        "prompt": list(request.prompt_ids),
        "seed": request.seed,
        "n": 1,
        "max_tokens": sampling.max_new_tokens,
        "min_tokens": 0,
        "temperature": sampling.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logprobs": 0,
        "ignore_eos": True,
        "stop_token_ids": sorted(vocabulary.eos_ids),
        "stop": list(sampling.stop_strings),
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "return_token_ids": True,
        "add_special_tokens": False,
    }


def generation_of(answer: Any, sampling: Sampling, vocabulary: Vocabulary) -> Generation:
    """The response in an answer.

    Raises:
        NonFiniteAnswer: a log-prob is NaN or infinite.
        BadAnswer: the answer is not one whole response with a log-prob for each token.
    """
    try:
        (choice,) = answer["choices"]
        ids = [_token(token, vocabulary) for token in choice["token_ids"]]
        logprobs = [math.nan if one is None else float(one) for one in choice["logprobs"]["token_logprobs"]]
        finish, stop = choice["finish_reason"], choice.get("stop_reason")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadAnswer(f"no single response with tokens and log-probs is in {str(answer)[:200]}: {error!r}") from error
    if not ids or len(ids) != len(logprobs):
        raise BadAnswer(f"{len(ids)} response tokens came with {len(logprobs)} log-probs.")
    for place, logprob in enumerate(logprobs):
        if not _IMPOSSIBLE_NATS < logprob < math.inf:
            raise NonFiniteAnswer(place)
    return Generation(tuple(ids), tuple(logprobs), _finish_reason(ids, (finish, stop), sampling, vocabulary))


def _token(token: Any, vocabulary: Vocabulary) -> int:
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocabulary.size:
        raise BadAnswer(f"{token!r} is no token of this model's vocabulary (0 to {vocabulary.size - 1}).")
    return token


def _finish_reason(ids: Sequence[int], said: tuple[Any, Any], sampling: Sampling, vocabulary: Vocabulary) -> str:
    """`eos`, `length` or `stop_sequence`, from what the server says; its tokens must agree."""
    finish, stop = said
    if any(token in vocabulary.eos_ids for token in ids[:-1]) or len(ids) > sampling.max_new_tokens:
        raise BadAnswer(f"a response of {len(ids)} tokens goes on after its end ({sampling.max_new_tokens} allowed).")
    if ids[-1] in vocabulary.eos_ids:
        return "eos"
    if finish == "stop" and isinstance(stop, str) and stop in sampling.stop_strings:
        return "stop_sequence"
    if finish == "length" and len(ids) == sampling.max_new_tokens:
        return "length"
    raise BadAnswer(f"a response of {len(ids)} tokens ends with finish_reason={finish!r}, stop_reason={stop!r}.")
