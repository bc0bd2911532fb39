"""Whole numbers that grow with the iteration: batch sizes (P8) and group sizes (P9)."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

_Steps = tuple[tuple[int, int], ...]


def _require_rising(steps: _Steps) -> _Steps:
    starts, sizes = [start for start, _ in steps], [size for _, size in steps]
    if any(start < 1 for start in starts) or sorted(set(starts)) != starts:
        raise ValueError(
            f"the first iterations {starts} of a schedule must be 1 or more and rise, "
            "as in [[1, 32], [20, 64]]: 32 from iteration 1 on, 64 from iteration 20 on."
        )
    if any(size < 1 for size in sizes) or sorted(sizes) != sizes:
        raise ValueError(f"the sizes {sizes} of a schedule must be 1 or more and not fall, as in [[1, 32], [20, 64]].")
    return steps


StepSchedule = Annotated[_Steps, AfterValidator(_require_rising)]
"""Pairs of a first iteration and the size from there on; both rise."""


def size_at(steps: _Steps, iteration: int, *, default: int) -> int:
    """Return the size that holds in `iteration` (from 1): of the last step begun, or `default` before the first."""
    begun = [size for start, size in steps if start <= iteration]
    return begun[-1] if begun else default
