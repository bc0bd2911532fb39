"""Repetition and variety of token lists (E4)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def repeated_ngram_fraction(tokens: Sequence[Hashable], n: int = 4) -> float:
    """Share of the n-grams that stood before in the same list; 0 where the list has no n-gram."""
    total = len(tokens) - n + 1
    if total < 1:
        return 0.0
    return 1.0 - len({tuple(tokens[i : i + n]) for i in range(total)}) / total


def distinct_fraction(texts: Sequence[Sequence[Hashable]], n: int = 2) -> float:
    """Distinct n-grams over all n-grams of all lists; 0 where there is none.

    Source: Li et al. 2016, arXiv:1510.03055 (distinct-n), over n-grams.
    """
    ngrams = [tuple(text[i : i + n]) for text in texts for i in range(len(text) - n + 1)]
    return len(set(ngrams)) / len(ngrams) if ngrams else 0.0
