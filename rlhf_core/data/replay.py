"""Safe replies that stood in for rejected responses, mixed into the general text of later updates (G3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_core.config.rejection import ReplacementConfig
from rlhf_core.data.store import RunFolder, read_table
from rlhf_core.seeding import derive_seed

REPLACED = "replaced.parquet"
"""Of an iteration's rollouts: `REPLACED_SCHEMA`."""


def replay_documents(folder: RunFolder, iteration: int, config: ReplacementConfig, max_tokens: int) -> list[list[int]]:
    """Prompts with their safe replies, of the last iterations before this one, the oldest first.

    Iteration numbers are never used twice and a finished iteration's rollouts do not change, so a resumed run reads the
    same. A document longer than `max_tokens` loses tokens at its left, where the prompt begins.
    """
    documents: list[list[int]] = []
    for number in range(max(1, iteration - config.replay_iterations), iteration):
        path = folder.iteration(number) / "rollouts" / REPLACED
        if path.exists():
            documents += [list(ids)[-max_tokens:] for ids in read_table(path)["token_ids"]]
    return documents


def mix_replay(
    documents: Sequence[list[int]], replay: Sequence[list[int]], *, share: float, iteration: int, seed: int
) -> list[list[int]]:
    """The documents of one update, with up to `share` of them replaced by replayed ones, each at most once.

    Args:
        documents: general text in the order of its use.
        replay: what may be replayed.
        share: of the documents, in [0, 1].
        iteration: counts from 1; with the seed it decides which are taken and where they stand.
        seed: the run's.
    """
    mixed = list(documents)
    count = min(int(share * len(documents)), len(replay))
    draw = np.random.default_rng(derive_seed(seed, "replay", iteration))
    chosen = draw.permutation(len(replay))[:count].tolist()
    places = np.sort(draw.permutation(len(documents))[:count]).tolist()
    for place, number in zip(places, chosen, strict=True):
        mixed[place] = list(replay[number])
    return mixed
