"""Rejection of invalid, repetitive and banned texts, with bounded resampling (G3)."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rlhf_core.config.rollout import RejectionConfig
from rlhf_core.errors import ConfigError
from rlhf_core.rollout.sampling import Place, Sampler, rollout_frame
from rlhf_core.rollout.text_statistics import repeated_ngram_fraction

MAX_BROKEN_CHARACTERS = 0.1
"""Share of replacement and control characters above which a text is no text."""
_REPLACEMENT = "�"
_WHITE_SPACE = "\n\r\t"


@dataclass(frozen=True)
class Sampled:
    """Rows of `ROLLOUT_SCHEMA`: those to learn from, and those rejected with `rejected_by`."""

    kept: pd.DataFrame
    rejected: pd.DataFrame


class ResponseFilter:
    """Says why a response is rejected, cheapest reason first."""

    def __init__(self, config: RejectionConfig) -> None:
        """Compile the patterns.

        Raises:
            ConfigError: a banned pattern is no regular expression.
        """
        self.config = config
        self._banned = [_compiled(number, pattern) for number, pattern in enumerate(config.banned_patterns)]

    def reason(self, row: dict[str, Any]) -> str | None:
        """`banned`, `too_short`, `invalid` or `repetitive`; None where the response may stay."""
        text, own_tokens = row["response"], len(row["response_ids"]) - (row["finish_reason"] == "eos")
        if any(pattern.search(text) for pattern in self._banned):
            return "banned"
        if own_tokens < self.config.min_response_tokens:
            return "too_short"
        if own_tokens and is_invalid_text(text, is_cut=row["finish_reason"] == "length"):
            return "invalid"
        if repeated_ngram_fraction(row["response_ids"]) > self.config.max_repeated_ngram_fraction:
            return "repetitive"
        return None


def is_invalid_text(text: str, *, is_cut: bool) -> bool:
    """Whether a text is blank, or largely made of bytes that form no character.

    Args:
        text: the decoded response.
        is_cut: it was cut at the length limit, so that its last character may be half a one.
    """
    if is_cut:
        text = text.removesuffix(_REPLACEMENT)
    if not text.strip():
        return True
    broken = sum(c == _REPLACEMENT or (unicodedata.category(c) == "Cc" and c not in _WHITE_SPACE) for c in text)
    return broken > MAX_BROKEN_CHARACTERS * len(text)


def sample_with_rejection(sampler: Sampler, places: Sequence[Place]) -> Sampled:
    """Sample every place; a rejected response is drawn anew with another seed, or given up, as configured.

    A place that gives no acceptable response within `max_attempts` has no row in `kept`.

    Raises:
        ConfigError: a banned pattern is no regular expression.
        NumericsError: the policy's logits are NaN or infinite.
    """
    config = sampler.config.rejection
    filters = ResponseFilter(config)
    attempts = config.max_attempts if config.policy == "resample" else 1
    kept: dict[int, dict[str, Any]] = {}
    rejected: list[dict[str, Any]] = []
    waiting = list(range(len(places)))
    for attempt in range(1, attempts + 1):
        again: list[int] = []
        for index, row in zip(waiting, sampler.sample([places[i] for i in waiting], attempt), strict=True):
            reason = filters.reason(row)
            if reason is None:
                kept[index] = row
            else:
                rejected.append({**row, "rejected_by": reason})
                again.append(index)
        waiting = again
        if not waiting:
            break
    return Sampled(rollout_frame([kept[index] for index in sorted(kept)]), rollout_frame(rejected))


def rejection_counts(rejected: pd.DataFrame) -> dict[str, int]:
    """Rejected responses by reason."""
    return dict(Counter(str(reason) for reason in rejected["rejected_by"]))


def _compiled(number: int, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"rollout.rejection.banned_patterns[{number}] = {pattern!r} is no regular expression: {error}. "
            "Write a plain text with its special characters escaped, e.g. 'a\\.b'."
        ) from error
