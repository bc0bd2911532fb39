"""Filters of responses in order of their cost, behind one protocol (G3)."""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlhf_core.config.banned_words import banned_phrase, words_of
from rlhf_core.config.rejection import RejectionConfig, RejectionReason
from rlhf_core.engines.protocols import Scorer
from rlhf_core.rollout.text_statistics import repeated_ngram_fraction
from rlhf_core.safety.protocol import SafetyClassifier

Row = Mapping[str, Any]
"""A sampled response, as `ROLLOUT_SCHEMA` has it."""

MAX_BROKEN_CHARACTERS = 0.1
"""Share of replacement and control characters above which a text is no text."""
_REPLACEMENT = "�"
_WHITE_SPACE = "\n\r\t"


class ResponseFilter(Protocol):
    """Judges many responses at once, so that a model can take them in batches."""

    @property
    def name(self) -> RejectionReason:
        """The reason that it gives."""
        ...

    def rejects(self, rows: Sequence[Row]) -> list[bool]:
        """Whether each response is rejected, in the rows' order; what stands for one row depends on that row alone."""
        ...


@dataclass(frozen=True)
class RuleFilter:
    """A filter that looks at one response after the other."""

    name: RejectionReason
    rule: Callable[[Row], bool]

    def rejects(self, rows: Sequence[Row]) -> list[bool]:
        return [self.rule(row) for row in rows]


@dataclass(frozen=True)
class SafetyFilter:
    """Rejects what a classifier finds unsafe."""

    classifier: SafetyClassifier
    threshold: float
    name: RejectionReason = "unsafe"

    def rejects(self, rows: Sequence[Row]) -> list[bool]:
        found = self.classifier.unsafe_probabilities(
            [str(row["prompt"]) for row in rows], [str(row["response"]) for row in rows]
        )
        return [probability >= self.threshold for probability in found]


@dataclass(frozen=True)
class RewardFilter:
    """Rejects what the run's scorer gives too little; a response that it may not judge, or gives no number, passes."""

    scorer: Scorer
    min_reward: float
    scores_truncated: bool
    name: RejectionReason = "low_reward"

    def rejects(self, rows: Sequence[Row]) -> list[bool]:
        asked = [i for i, row in enumerate(rows) if self.scores_truncated or row["ending"] != "truncated"]
        rejected = [False] * len(rows)
        for i, score in zip(asked, self.scorer.score([rows[i] for i in asked]) if asked else [], strict=True):
            rejected[i] = score < self.min_reward
        return rejected


class FilterChain:
    """Asks each filter about what the cheaper ones let pass; counts texts and seconds of each."""

    def __init__(self, filters: Sequence[ResponseFilter], clock: Callable[[], float] = time.perf_counter) -> None:
        self.filters = tuple(filters)
        self.texts = {one.name: 0 for one in self.filters}
        self.seconds = {one.name: 0.0 for one in self.filters}
        self._clock = clock

    def reasons(self, rows: Sequence[Row]) -> list[RejectionReason | None]:
        """The first filter's name that rejects each response; None where it may stay."""
        found: list[RejectionReason | None] = [None] * len(rows)
        for one in self.filters:
            asked = [i for i, reason in enumerate(found) if reason is None]
            if not asked:
                break
            start = self._clock()
            for i, is_rejected in zip(asked, one.rejects([rows[i] for i in asked]), strict=True):
                if is_rejected:
                    found[i] = one.name
            self.seconds[one.name] += self._clock() - start
            self.texts[one.name] += len(asked)
        return found


def rule_filters(config: RejectionConfig, phrases: Sequence[tuple[str, ...]] = ()) -> list[ResponseFilter]:
    """The filters that need no model, those alone that may reject anything.

    Args:
        config: patterns, words and limits.
        phrases: of the files of banned words, beside `config.banned_words`.
    """
    patterns = [re.compile(pattern) for pattern in config.banned_patterns]
    words = BannedWords([*(banned_phrase(word) for word in config.banned_words), *phrases])
    shortest, most_repeated = config.min_response_tokens, config.max_repeated_ngram_fraction
    filters: list[ResponseFilter] = []
    if patterns:
        filters.append(RuleFilter("banned", lambda row: any(found.search(row["response"]) for found in patterns)))
    if words:
        filters.append(RuleFilter("banned_word", lambda row: words.stand_in(row["response"])))
    return [
        *filters,
        RuleFilter("too_short", lambda row: own_tokens(row) < shortest),
        RuleFilter("invalid", lambda row: own_tokens(row) > 0 and _is_invalid(row)),
        RuleFilter("repetitive", lambda row: repeated_ngram_fraction(row["response_ids"]) > most_repeated),
    ]


class BannedWords:
    """Words and phrases, found in a text by one pass over its words whatever the length of the list."""

    def __init__(self, phrases: Sequence[tuple[str, ...]]) -> None:
        self._by_length: dict[int, set[tuple[str, ...]]] = {}
        for phrase in phrases:
            self._by_length.setdefault(len(phrase), set()).add(phrase)

    def __bool__(self) -> bool:
        return bool(self._by_length)

    def stand_in(self, text: str) -> bool:
        """Whether one of them stands in the text as whole words."""
        words = words_of(text)
        return any(
            tuple(words[start : start + length]) in phrases
            for length, phrases in self._by_length.items()
            for start in range(len(words) - length + 1)
        )


def own_tokens(row: Row) -> int:
    """Tokens of a response without the EOS that ended it."""
    return len(row["response_ids"]) - (row["finish_reason"] == "eos")


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


def _is_invalid(row: Row) -> bool:
    return is_invalid_text(row["response"], is_cut=row["finish_reason"] == "length")
