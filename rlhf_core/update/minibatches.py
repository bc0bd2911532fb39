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


def share_rows(rows: Sequence[int], lengths: Sequence[int], size: int, ranks: int = 1) -> list[list[list[int]]]:
    """Return each rank's micro-batches of a mini-batch, equally many for all, of about equal token counts.

    A rank's micro-batch is empty where there are fewer rows than ranks.

    Args:
        rows: indices into `lengths`, of the mini-batch.
        lengths: tokens of each rollout.
        size: rollouts of a micro-batch at most.
        ranks: number of ranks.
    """
    shares = _deal(rows, lengths, ranks)
    count = max(1, -(-max(map(len, shares)) // size))
    return [_deal(share, lengths, count) for share in shares]


def _deal(rows: Sequence[int], lengths: Sequence[int], count: int) -> list[list[int]]:
    """The rows in `count` groups, whose sizes differ by at most one, longest first and to and fro."""
    groups: list[list[int]] = [[] for _ in range(count)]
    for number, row in enumerate(sorted(rows, key=lambda row: (-lengths[row], row))):
        lap, place = divmod(number, count)
        groups[place if lap % 2 == 0 else count - 1 - place].append(row)
    return groups
