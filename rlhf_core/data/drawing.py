"""Drawing without replacement, iteration by iteration, from seeds alone.

What an iteration draws follows from the seed and the numbers of draws so far, so a resumed run draws what the
uninterrupted one would have, and nothing has to be stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlhf_core.seeding import derive_seed

Counts = NDArray[np.int64]


def draw_indices(size: int, counts: Sequence[int] | Counts, seed: int) -> list[int]:
    """Indices in [0, size) for the last of several draws.

    The draws take one after the other from an endless row of passes; a pass holds each index once, in random order.
    Where a draw reaches into the next pass, that pass starts with indices that the draw has not taken yet, so a draw
    has no index twice unless it takes more than `size`.

    Args:
        size: how many things there are to draw from.
        counts: how many each draw takes, from the first to the one asked for.
        seed: of the order.
    """
    ends = np.cumsum(np.asarray(counts, dtype=np.int64))
    start, end = (int(ends[-2]) if len(ends) > 1 else 0), int(ends[-1])
    if start == end:
        return []
    taken: list[int] = []
    order = np.empty(0, dtype=np.int64)
    for number in range((end - 1) // size + 1):
        border = number * size
        order = _pass_order(size, number, seed, _shared(ends, border, order))
        if border + size > start:
            taken.extend(order[max(start - border, 0) : min(end - border, size)].tolist())
    return taken


def _shared(ends: Counts, border: int, previous: Counts) -> tuple[Counts, int]:
    """What the draw that crosses `border` took before it, and how many it still takes after it."""
    draw = int(np.searchsorted(ends, border, side="right"))
    start = int(ends[draw - 1]) if draw else 0
    before = min(border - start, len(previous))
    return previous[len(previous) - before :], int(ends[draw]) - border


def _pass_order(size: int, number: int, seed: int, crossing: tuple[Counts, int]) -> Counts:
    """A random order whose first places avoid what the crossing draw has taken already, as far as that is possible."""
    already, wanted = crossing
    order = np.random.default_rng(derive_seed(seed, "pass", number)).permutation(size)
    if not len(already):
        return order
    is_new = ~np.isin(order, already)
    is_head = is_new & (np.cumsum(is_new) <= wanted)
    return np.concatenate([order[is_head], order[~is_head]])


def share_counts(shares: Sequence[float], count: int, iteration: int, seed: int) -> NDArray[np.int64]:
    """How many of `count` places each share gets, `[iteration, share]`, for the iterations 1 to `iteration`.

    Systematic sampling: every iteration's counts differ from `share × count` by less than 1 and add up to `count`, and
    their expectation is exact, so small shares come up in some iterations instead of never.

    Args:
        shares: non-negative, adding up to 1.
        count: places of one iteration.
    """
    edges = np.cumsum(np.asarray(shares, dtype=np.float64))
    edges /= edges[-1]
    offsets = np.random.default_rng(derive_seed(seed, "shares")).random(iteration)
    upper = np.floor(count * edges[None, :] + offsets[:, None]).astype(np.int64)
    return np.diff(upper, axis=1, prepend=0)
