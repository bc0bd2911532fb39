"""The pretraining documents of one update, consumed in order (P3)."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core.config.ppo import PtxConfig
from rlhf_core.errors import DataError


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
