"""The safety classifier that comes with the project: a linear model over words and pairs of words.

It is a sieve for the crudest cases, no guard. It was trained on a few hundred short texts that the project wrote itself
(`safety/training_texts.py`), reads English alone and the response alone, and knows no context; docs/results.md tells
what it misses and what it wrongly rejects.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import pairwise

from rlhf_core.config.banned_words import words_of

WEIGHTS = "packaged_weights.json"


class PackagedClassifier:
    """P(unsafe) = σ(bias + Σ weight of each known n-gram / √(number of n-grams that are known))."""

    def __init__(self, bias: float, weights: Mapping[str, float]) -> None:
        """Keep the weights, in logits; those of n-grams of one and two words."""
        self.bias, self.weights = bias, weights

    def unsafe_probabilities(self, prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
        """P(unsafe) of each response; the prompts are not read. A text without a known word gets the bias alone."""
        return [self._probability(response) for response in responses]

    def _probability(self, text: str) -> float:
        known = [self.weights[ngram] for ngram in sorted(set(ngrams(text))) if ngram in self.weights]
        logit = self.bias + (math.fsum(known) / math.sqrt(len(known)) if known else 0.0)
        return 1.0 / (1.0 + math.exp(-logit))


def ngrams(text: str) -> Iterator[str]:
    """Words, and pairs of neighbouring words."""
    words = words_of(text)
    yield from words
    yield from (f"{first} {second}" for first, second in pairwise(words))


def load_packaged() -> PackagedClassifier:
    """The classifier with the weights in this package."""
    content = json.loads((files("rlhf_core.safety") / WEIGHTS).read_text(encoding="utf-8"))
    return PackagedClassifier(float(content["bias"]), content["weights"])
