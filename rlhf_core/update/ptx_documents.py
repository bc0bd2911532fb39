"""The pretraining documents of one update, consumed in order (P3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlhf_core.config.ppo import PtxConfig
from rlhf_core.errors import DataError
from rlhf_core.numerics.reductions import Ranks


class PtxDocuments:
    """Hands out the documents of each step once, however often the step is tried."""

    def __init__(self, documents: Sequence[Sequence[int]], config: PtxConfig, ptx_coef: float) -> None:
        self._documents, self._config = documents, config
        self._is_used = config.enabled and ptx_coef != 0
        self._taken = 0

    def of_step(self, mini_batch: int) -> list[Sequence[int]]:
        """The next documents, cut at `ptx.max_tokens`; none but in every k-th step.

        Args:
            mini_batch: from 0, in the update.

        Raises:
            DataError: there are too few.
        """
        if not self._is_used or mini_batch % self._config.every_updates:
            return []
        taken, count = self._taken, self._config.documents_per_update
        documents = [document[: self._config.max_tokens] for document in self._documents[taken : taken + count]]
        if len(documents) < count:
            raise DataError(
                f"the update needs {count} pretraining documents from number {taken} on, and got "
                f"{len(self._documents)} in all. Give more text in data.ptx, or set ppo.ptx.enabled=false."
            )
        self._taken += count
        return documents


def share_documents(
    documents: Sequence[Sequence[int]], size: int, ranks: Ranks
) -> list[tuple[Sequence[Sequence[int]], float]]:
    """Return a rank's share of a step's documents, in groups of at most `size`, equally many groups on every rank.

    A group comes with its weight: 0 where the rank has none left and another rank has; it then holds a document of
    another rank's, so that all ranks make as many passes.
    """
    own = documents[ranks.number :: ranks.count]
    groups = math.ceil(math.ceil(len(documents) / ranks.count) / size)
    parts = [own[start : start + size] for start in range(0, groups * size, size)]
    return [(part, 1.0) if part else (documents[:1], 0.0) for part in parts]
