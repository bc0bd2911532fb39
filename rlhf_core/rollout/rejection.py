"""Rejection of bad responses, and what becomes of them: bounded resampling, a gap, a penalty or a replacement (G3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rlhf_core.rollout.filters import FilterChain
from rlhf_core.rollout.replacement import Replies, replaced_frame
from rlhf_core.rollout.sampling import Place, Sampler, rollout_frame


@dataclass(frozen=True)
class Sampled:
    """What was sampled for an iteration."""

    kept: pd.DataFrame
    """`ROLLOUT_SCHEMA`: rows to learn from; those to be penalised have `rejected_by`."""
    rejected: pd.DataFrame
    """`ROLLOUT_SCHEMA`: rows that nothing is learnt from, each with `rejected_by`."""
    replaced: pd.DataFrame
    """`REPLACED_SCHEMA`: safe replies for some of the rejected rows."""

    @property
    def drawn(self) -> int:
        """Responses that the policy wrote."""
        return len(self.kept) + len(self.rejected)

    @property
    def rejection_counts(self) -> dict[str, int]:
        """Rejected responses by reason, penalised ones among them."""
        reasons = [*self.kept["rejected_by"], *self.rejected["rejected_by"]]
        return dict(Counter(str(reason) for reason in reasons if isinstance(reason, str)))


@dataclass(frozen=True)
class Rejecter:
    """Filters, and the replies that may stand in for what they reject."""

    filters: FilterChain
    replies: Replies


def sample_with_rejection(sampler: Sampler, places: Sequence[Place], rejecter: Rejecter) -> Sampled:
    """Sample every place and do with a rejected response as the policy of its filter says.

    A place has one row in `kept`, or none: where it was dropped, replaced, or gave no acceptable response within
    `max_attempts`. A response without a token has nothing to penalise and is dropped.

    Raises:
        NumericsError: the policy's logits are NaN or infinite.
    """
    config = sampler.config.rejection
    kept: dict[int, dict[str, Any]] = {}
    rejected: list[dict[str, Any]] = []
    replaced: list[dict[str, Any]] = []
    waiting = list(range(len(places)))
    for attempt in range(1, config.max_attempts + 1):
        again: list[int] = []
        rows = sampler.sample([places[i] for i in waiting], attempt)
        for index, row, reason in zip(waiting, rows, rejecter.filters.reasons(rows), strict=True):
            if reason is None:
                kept[index] = row
                continue
            row, policy = {**row, "rejected_by": reason}, config.policy_for(reason)
            if policy == "penalise" and row["response_ids"]:
                kept[index] = row
                continue
            rejected.append(row)
            if policy == "resample":
                again.append(index)
            elif policy == "replace":
                replaced.append(rejecter.replies.replacement(row))
        waiting = again
        if not waiting:
            break
    kept_rows = [kept[index] for index in sorted(kept)]
    return Sampled(rollout_frame(kept_rows), rollout_frame(rejected), replaced_frame(replaced))
