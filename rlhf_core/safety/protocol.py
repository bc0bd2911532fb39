"""The seam to whatever says how unsafe a response is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class SafetyClassifier(Protocol):
    """Gives each response a probability of being unsafe."""

    def unsafe_probabilities(self, prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
        """P(unsafe) of each response, in their order; it depends on its own prompt and response alone.

        Raises:
            NumericsError: a model's output is NaN or infinite.
            OutOfMemory: a single text does not fit.
        """
        ...
