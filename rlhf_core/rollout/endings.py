"""What the end of a response means (A5)."""

from __future__ import annotations

from typing import Literal

from rlhf_core.errors import DataError

Ending = Literal["natural", "early", "truncated"]


def classify_ending(finish_reason: str, response_tokens: int, min_response_tokens: int) -> Ending:
    """Return how a response ended, from the engine's word and never from padding or width (E06).

    A stop string or stop id is as good an end as EOS (E03).

    Args:
        finish_reason: `eos`, `length` or `stop_sequence`.
        response_tokens: tokens of the response, EOS included, as `response_mask` counts them.
        min_response_tokens: fewer make a self-ended response `early`.

    Raises:
        DataError: the engine's word is unknown.
    """
    if finish_reason == "length":
        return "truncated"
    if finish_reason in ("eos", "stop_sequence"):
        return "early" if response_tokens < min_response_tokens else "natural"
    raise DataError(
        f"finish_reason={finish_reason!r} is unknown, so the end of a response of {response_tokens} tokens cannot be "
        "judged. A rollout engine must report one of 'eos', 'length', 'stop_sequence'."
    )
