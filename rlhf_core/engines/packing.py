"""Rollouts and documents laid one after another, so that no padded token goes through a model (P12)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rlhf_core.engines.protocols import RolloutTensors
from rlhf_core.errors import DataError


@dataclass(frozen=True)
class Pack:
    """Several sequences in one row, and which of their tokens are to be predicted."""

    ids: Tensor
    """`[tokens]`: all sequences' tokens."""
    positions: Tensor
    """`[tokens]`: of each token in its own sequence, from 0."""
    lengths: tuple[int, ...]
    """Of the sequences; each at least 1."""
    predictors: Tensor
    """`[targets]`: where in `ids` the token before each target lies, whose hidden state predicts it."""
    targets: Tensor
    """`[targets]`: the predicted ids, row by row."""
    ends: Tensor
    """`[sequences]`: where in `ids` each sequence's last token lies."""


def pack_rollouts(rollouts: RolloutTensors, rows: Tensor, *, with_last: bool = False) -> Pack:
    """Lay the rows' prompts and responses one after another; targets are the response tokens.

    Args:
        rollouts: padded as their masks say; what the masks hide is not read.
        rows: `[chosen]`, indices of rows.
        with_last: keep each response's last token, which predicts nothing but is needed for the value after it.

    Raises:
        DataError: a prompt has no tokens, so that nothing would predict its first response token.
    """
    prompt_mask, response_mask = rollouts.prompt_mask[rows], rollouts.response_mask[rows]
    if not bool(prompt_mask.any(dim=1).all()):
        empty = rows[~prompt_mask.any(dim=1)].tolist()
        raise DataError(f"the prompts of rollouts {empty} have no tokens; leave such rows out before training.")
    ids = torch.cat([rollouts.prompt_ids[rows], rollouts.response_ids[rows]], dim=1)
    mask = torch.cat([prompt_mask, response_mask], dim=1)
    is_target = torch.cat([torch.zeros_like(prompt_mask), response_mask], dim=1)
    return _pack(ids, mask, is_target, with_last=with_last)


def pack_documents(documents: Sequence[Sequence[int]], device: torch.device) -> Pack:
    """Lay documents one after another; targets are all tokens but each document's first.

    Raises:
        DataError: a document has fewer than two tokens, so that nothing in it can be predicted.
    """
    short = [index for index, document in enumerate(documents) if len(document) < 2]
    if short:
        raise DataError(f"pretraining documents {short} have fewer than 2 tokens; leave them out of the ptx data.")
    lengths = torch.tensor([len(document) for document in documents])
    mask = torch.arange(int(lengths.max()))[None, :] < lengths[:, None]
    ids = torch.zeros(mask.shape, dtype=torch.long)
    ids[mask] = torch.tensor([token for document in documents for token in document])
    is_target = mask.clone()
    is_target[:, 0] = False
    return _pack(ids.to(device), mask.to(device), is_target.to(device), with_last=False)


def _pack(
    ids: Int[Tensor, "rows width"],
    mask: Bool[Tensor, "rows width"],
    is_target: Bool[Tensor, "rows width"],
    *,
    with_last: bool,
) -> Pack:
    positions = mask.long().cumsum(dim=1) - 1
    kept = mask
    if not with_last:
        is_last = positions == positions.amax(dim=1, keepdim=True)
        kept = mask & ~(is_last & is_target)
    lengths = kept.sum(dim=1)
    starts = lengths.cumsum(0) - lengths
    return Pack(
        ids=ids[kept],
        positions=positions[kept],
        lengths=tuple(lengths.tolist()),
        predictors=(starts[:, None] + positions - 1)[is_target],
        targets=ids[is_target],
        ends=starts + lengths - 1,
    )
