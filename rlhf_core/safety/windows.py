"""Long responses are judged in parts, so that nothing is cut off unread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlhf_core.data.collate import padded
from rlhf_core.engines.memory import BatchSize, in_batches
from rlhf_core.errors import NumericsError

Form = Callable[[str, str], str]
"""From prompt and response to the text that a model reads."""

_SLACK = 16
"""Tokens kept free: a part that is decoded and encoded again may have a few more."""


def windows(
    tokenizer: PreTrainedTokenizerBase, form: Form, prompt: str, response: str, max_tokens: int
) -> list[list[int]]:
    """Token ids of the filled form for each part of the response, one part where it fits into `max_tokens`.

    A prompt that would take more than half of the room loses its beginning.
    """
    prompt_ids = token_ids(tokenizer, prompt)
    frame = len(form_ids(tokenizer, form("", "")))
    room = max(max_tokens - frame - _SLACK, 2)
    if len(form_ids(tokenizer, form(prompt, ""))) > frame + room // 2:
        prompt = str(tokenizer.decode(prompt_ids[-(room // 2) :], skip_special_tokens=True))
    whole = form_ids(tokenizer, form(prompt, response))
    if len(whole) <= max_tokens:
        return [whole]
    response_ids = token_ids(tokenizer, response)
    size = max(1, max_tokens - len(form_ids(tokenizer, form(prompt, ""))) - _SLACK)
    parts = [response_ids[start : start + size] for start in range(0, len(response_ids), size)]
    texts = [str(tokenizer.decode(part, skip_special_tokens=True)) for part in parts]
    return [form_ids(tokenizer, form(prompt, text)) for text in texts]


def worst_of_parts(
    parts: Sequence[Sequence[list[int]]],
    probabilities: Callable[[Tensor, Tensor], Tensor],
    batch: BatchSize,
    *,
    is_left: bool,
    pad_id: int,
) -> list[float]:
    """The greatest P(unsafe) among the parts of each response; parts run in batches of like length.

    Args:
        parts: token ids of the parts of each response, one at least.
        probabilities: of `(ids, mask)`, both `[batch, longest]`.
        batch: rows that go through the model together; halves where memory runs out.
        is_left: pad on the left.
        pad_id: fills what the mask leaves out.

    Raises:
        NumericsError: a probability is NaN.
        OutOfMemory: a single part does not fit.
    """
    flat = [(owner, ids or [pad_id]) for owner, of_one in enumerate(parts) for ids in of_one]
    flat.sort(key=lambda item: -len(item[1]))
    worst = [0.0] * len(parts)

    def compute(rows: range) -> None:
        ids, mask = padded([flat[row][1] for row in rows], pad_id, is_left=is_left)
        with torch.no_grad():
            found = probabilities(ids, mask).float().cpu().tolist()
        for row, value in zip(rows, found, strict=True):
            if value != value:
                raise NumericsError("the safety classifier's output is NaN. Its weights are damaged; get them again.")
            worst[flat[row][0]] = max(worst[flat[row][0]], value)

    in_batches(len(flat), batch, compute, work="judging the safety of responses")
    return worst


def token_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Tokens of a text alone."""
    ids: Any = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return list(ids)


def form_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Tokens of a whole text, with the special ones that the tokenizer adds, unless the text begins with its BOS."""
    bos: Any = tokenizer.bos_token
    ids: Any = tokenizer(text, add_special_tokens=not (bos and text.startswith(bos)), verbose=False)["input_ids"]
    return list(ids)
