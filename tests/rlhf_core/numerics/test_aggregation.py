from __future__ import annotations

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.numerics.aggregation import token_weights
from rlhf_core.numerics.masking import mask_from_lengths

losses = st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=5), min_size=1, max_size=6)


def total(rows, mode, *, token_count, sequence_count):
    """Σ w·loss_t / token_count of one micro-batch; padding holds 7."""
    mask = mask_from_lengths(torch.tensor([len(row) for row in rows]), 6)
    weights = token_weights(mask, mode, token_count=token_count, sequence_count=sequence_count)
    padded = torch.tensor([[*row, *[7.0] * (6 - len(row))] for row in rows], dtype=torch.float64)
    return (weights * padded).sum().item() / token_count


@given(losses, st.integers(0, 6))
def test_micro_batches_add_up_to_either_mean_of_the_mini_batch(rows, cut):
    counts = {"token_count": sum(map(len, rows)), "sequence_count": len(rows)}
    want = {
        "token": statistics.fmean(loss for row in rows for loss in row),
        "sequence": statistics.fmean(map(statistics.fmean, rows)),
    }
    for mode, mean in want.items():
        parts = [part for part in (rows[:cut], rows[cut:]) if part]
        assert sum(total(part, mode, **counts) for part in parts) == pytest.approx(mean, rel=1e-12, abs=1e-12)


def test_a_long_response_counts_more_by_tokens_and_alike_by_sequences():
    rows, counts = [[1.0], [0.0, 0.0, 0.0]], {"token_count": 4, "sequence_count": 2}
    assert total(rows, "token", **counts) == 0.25
    assert total(rows, "sequence", **counts) == 0.5


@pytest.mark.parametrize("mode", ["token", "sequence"])
def test_an_empty_response_has_no_weight_and_takes_none_from_the_others(mode):
    mask = mask_from_lengths(torch.tensor([0, 2]), 3)
    weights = token_weights(mask, mode, token_count=2, sequence_count=1)
    assert weights.tolist() == [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    assert token_weights(mask[:1], mode, token_count=0, sequence_count=0).tolist() == [[0.0] * 3]
