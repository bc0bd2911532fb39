"""How one iteration's rollouts are cut: mini-batches are optimizer steps, micro-batches are forward passes."""

from __future__ import annotations

import random
from collections.abc import Sequence


def mini_batches(lengths: Sequence[int], size: int, *, seed: int, epoch: int) -> list[list[int]]:
    """Return row indices, each once, in ⌈rows / size⌉ mini-batches whose sizes differ by at most one.

    Rows of like length are dealt to different mini-batches, at random within that: every mini-batch has about the same
    number of tokens, so that no gradient is noisier than another, and which rows meet changes from epoch to epoch.

    Args:
        lengths: tokens of each rollout.
        size: rollouts of a mini-batch at most.
        seed: of the shuffle.
        epoch: pass over the rollouts; another one shuffles anew.
    """
    shuffle = random.Random(f"{seed}:{epoch}")
    count = -(-len(lengths) // size)
    order = sorted(range(len(lengths)), key=lambda row: (lengths[row], shuffle.random()))
    batches: list[list[int]] = [[] for _ in range(count)]
    for start in range(0, len(order), max(count, 1)):
        stratum = order[start : start + count]
        places = shuffle.sample(range(count), count)
        for place, row in zip(places, stratum, strict=False):
            batches[place].append(row)
    shuffle.shuffle(batches)
    return batches


def micro_batches(rows: Sequence[int], lengths: Sequence[int], size: int, *, at_least: int = 1) -> list[list[int]]:
    """Return the rows in ⌈rows / size⌉ micro-batches of about equal token counts, so that memory peaks stay low.

    Args:
        rows: indices into `lengths`.
        lengths: tokens of each rollout.
        size: rollouts of a micro-batch at most.
        at_least: micro-batches wanted, as many as another rank has; there are never more than rows.
    """
    count = min(len(rows), max(-(-len(rows) // size), at_least))
    batches: list[list[int]] = [[] for _ in range(count)]
    for rank, row in enumerate(sorted(rows, key=lambda row: (-lengths[row], row))):
        lap, place = divmod(rank, count)
        batches[place if lap % 2 == 0 else count - 1 - place].append(row)
    return batches
