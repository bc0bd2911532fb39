"""From rows to padded tensors."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from rlhf_core.engines.protocols import RolloutTensors
from rlhf_core.errors import DataError


def rollout_tensors(frame: pd.DataFrame, pad_id: int) -> RolloutTensors:
    """Tensors of the frame's rows: prompts left-padded `[batch, prompt]`, responses right-padded `[batch, response]`.

    Masks come from lengths, never from ids, so a pad token that is also EOS is trained on where it was sampled (E02).

    Args:
        frame: rows with `prompt_ids` and `response_ids` (lists of ints).
        pad_id: fills the places that the masks leave out.

    Raises:
        DataError: there are no rows, or a prompt has no tokens.
    """
    prompts = [list(ids) for ids in frame["prompt_ids"]]
    responses = [list(ids) for ids in frame["response_ids"]]
    if not prompts:
        raise DataError("no rollouts to make tensors of: the table is empty.")
    empty = [row for row, ids in enumerate(prompts) if not ids]
    if empty:
        raise DataError(f"row {empty[0]}: the prompt has no tokens ({len(empty)} of {len(prompts)} rows).")
    prompt_ids, prompt_mask = padded(prompts, pad_id, is_left=True)
    response_ids, response_mask = padded(responses, pad_id)
    return RolloutTensors(
        prompt_ids=prompt_ids, prompt_mask=prompt_mask, response_ids=response_ids, response_mask=response_mask
    )


def padded(sequences: Sequence[Sequence[int]], pad_id: int, *, is_left: bool = False) -> tuple[Tensor, Tensor]:
    """`(ids, mask)`, both `[batch, longest]`; the mask is True at the sequences' own tokens."""
    width = max(len(sequence) for sequence in sequences)
    ids = torch.full((len(sequences), width), pad_id, dtype=torch.long)
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    places = torch.arange(width)[None, :]
    mask = places >= width - lengths[:, None] if is_left else places < lengths[:, None]
    ids[mask] = torch.tensor([token for sequence in sequences for token in sequence], dtype=torch.long)
    return ids, mask
