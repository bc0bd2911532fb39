from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.data.collate import rollout_tensors
from rlhf_core.errors import DataError

ids = st.lists(st.integers(0, 9), min_size=1, max_size=6)


@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=5), st.integers(0, 9))
def test_case_E02_masks_come_from_lengths_whatever_the_pad_id_is(rows, pad_id):
    tensors = rollout_tensors(pd.DataFrame(rows, columns=["prompt_ids", "response_ids"]), pad_id)
    for row, (prompt, response) in enumerate(rows):
        assert tensors.prompt_ids[row, tensors.prompt_mask[row]].tolist() == prompt
        assert tensors.response_ids[row, tensors.response_mask[row]].tolist() == response
        assert tensors.prompt_mask[row, -len(prompt) :].all()
        assert tensors.response_mask[row, : len(response)].all()
    assert (tensors.prompt_ids[~tensors.prompt_mask] == pad_id).all()
    assert (tensors.response_ids[~tensors.response_mask] == pad_id).all()


def test_case_E06_a_short_cut_response_and_a_longer_ended_one_keep_their_own_lengths():
    frame = pd.DataFrame({"prompt_ids": [[1], [1]], "response_ids": [[5] * 5, [5] * 7 + [2]]})
    assert rollout_tensors(frame, 2).response_mask.sum(dim=1).tolist() == [5, 8]


@pytest.mark.parametrize(
    ("prompts", "message"), [([], "table is empty"), ([[1], []], "row 1: the prompt has no tokens")]
)
def test_rows_without_prompt_tokens_are_refused(prompts, message):
    with pytest.raises(DataError, match=message):
        rollout_tensors(pd.DataFrame({"prompt_ids": prompts, "response_ids": [[1]] * len(prompts)}), 0)
