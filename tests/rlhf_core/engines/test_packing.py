"""Where tokens lie in a pack, against plain lists."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.data.collate import padded
from rlhf_core.engines.packing import pack_documents, pack_rollouts
from rlhf_core.engines.protocols import RolloutTensors
from rlhf_core.errors import DataError

tokens = st.integers(1, 99)
rows = st.lists(
    st.tuples(st.lists(tokens, min_size=1, max_size=5), st.lists(tokens, max_size=5)), min_size=1, max_size=5
)


def tensors(pairs: list[tuple[list[int], list[int]]]) -> RolloutTensors:
    prompt_ids, prompt_mask = padded([prompt for prompt, _ in pairs], 0, is_left=True)
    response_ids, response_mask = padded([response for _, response in pairs], 0)
    return RolloutTensors(prompt_ids, prompt_mask, response_ids, response_mask)


@given(rows, st.booleans())
def test_a_pack_is_the_rows_one_after_another(pairs, with_last):
    pack = pack_rollouts(tensors(pairs), torch.arange(len(pairs)), with_last=with_last)
    sequences = [[*p, *r] if with_last or not r else [*p, *r[:-1]] for p, r in pairs]
    flat = [token for sequence in sequences for token in sequence]
    assert pack.ids.tolist() == flat
    assert pack.positions.tolist() == [i for sequence in sequences for i in range(len(sequence))]
    assert pack.lengths == tuple(map(len, sequences))
    assert pack.targets.tolist() == [token for _, response in pairs for token in response]
    starts = [sum(map(len, sequences[:row])) for row in range(len(pairs))]
    assert pack.predictors.tolist() == [
        starts[row] + len(prompt) - 1 + i for row, (prompt, response) in enumerate(pairs) for i in range(len(response))
    ]
    assert pack.ends.tolist() == [start + len(s) - 1 for start, s in zip(starts, sequences, strict=True)]


def test_rows_are_packed_in_the_order_asked_for():
    pack = pack_rollouts(tensors([([1], [2]), ([3], [4]), ([5], [6])]), torch.tensor([2, 0]), with_last=True)
    assert pack.ids.tolist() == [5, 6, 1, 2]


@given(st.lists(st.lists(tokens, min_size=2, max_size=6), min_size=1, max_size=4))
def test_documents_predict_all_their_tokens_but_the_first(documents):
    pack = pack_documents(documents, torch.device("cpu"))
    assert pack.ids.tolist() == [token for document in documents for token in document[:-1]]
    assert pack.targets.tolist() == [token for document in documents for token in document[1:]]
    assert pack.predictors.tolist() == list(range(len(pack.ids)))


def test_a_prompt_without_tokens_is_refused():
    rollouts = tensors([([1], [2]), ([3], [4])])
    rollouts.prompt_mask[1] = False
    with pytest.raises(DataError, match=r"rollouts \[1\]"):
        pack_rollouts(rollouts, torch.arange(2))


def test_a_document_that_predicts_nothing_is_refused():
    with pytest.raises(DataError, match=r"\[1\] have fewer than 2"):
        pack_documents([[1, 2], [3]], torch.device("cpu"))
