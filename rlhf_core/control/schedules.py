"""Sizes that change by iteration: batch size (P8) and group size (P9)."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core.errors import ConfigError


def stepwise(iteration: int, steps: Sequence[tuple[int, int]]) -> int:
    """Return the size of an iteration: that of the last step whose first iteration is not after it.

    A batch size of 32, 64 from iteration 10 on and 256 from 30 on is `[(0, 32), (10, 64), (30, 256)]`.

    Args:
        iteration: from 0.
        steps: `(first iteration, size)`, first iterations rising from 0, sizes at least 1.

    Raises:
        ConfigError: there is no step, they are not sorted, do not start at 0, or a size is below 1.
    """
    starts = [start for start, _ in steps]
    if not starts or starts[0] != 0 or starts != sorted(set(starts)) or min(size for _, size in steps) < 1:
        raise ConfigError(
            f"the schedule {[list(step) for step in steps]} is none. Give pairs (first iteration, size) with first "
            "iterations that rise from 0 and sizes of at least 1, such as [[0, 32], [10, 64]]."
        )
    if iteration < 0:
        raise ConfigError(f"iteration={iteration} has no size in a schedule; iterations count from 0.")
    return [size for start, size in steps if start <= iteration][-1]
