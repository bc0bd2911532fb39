from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.numerics.masking import last_token_index, mask_from_lengths, masked_mean, masked_sum

NAN = float("nan")


@given(st.lists(st.integers(0, 6), max_size=5), st.integers(0, 8))
def test_a_mask_shows_the_first_places_of_each_row(lengths, width):
    mask = mask_from_lengths(torch.tensor(lengths, dtype=torch.long), width)
    assert mask.tolist() == [[place < length for place in range(width)] for length in lengths]


def test_a_mean_never_reads_what_is_hidden():
    x = torch.tensor([1.0, NAN, 5.0], requires_grad=True)
    mask = torch.tensor([True, False, True])
    mean = masked_mean(x, mask)
    mean.backward()
    assert mean.item() == 3.0
    assert masked_sum(x, mask).item() == 6.0
    assert x.grad.tolist() == [0.5, 0.0, 0.5]


def test_case_N11_the_mean_of_nothing_is_zero():
    assert masked_mean(torch.tensor([NAN, NAN]), torch.tensor([False, False])).item() == 0.0
    assert masked_mean(torch.empty(0), torch.empty(0, dtype=torch.bool)).item() == 0.0


def test_the_last_token_is_the_last_one_shown():
    mask = torch.tensor([[True, True, False], [True, True, True], [False, False, False], [False, True, False]])
    assert last_token_index(mask).tolist() == [1, 2, 0, 1]
    assert last_token_index(torch.empty(2, 0, dtype=torch.bool)).tolist() == [0, 0]
