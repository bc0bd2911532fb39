"""Laws of the cut into mini- and micro-batches."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.update.minibatches import mini_batches, share_rows

lengths_of_rows = st.lists(st.integers(1, 200), min_size=1, max_size=40)
sizes = st.integers(1, 10)


@given(lengths_of_rows, sizes, st.integers(0, 5), st.integers(0, 5))
def test_every_row_is_in_one_mini_batch_and_sizes_differ_by_at_most_one(lengths, size, seed, epoch):
    batches = mini_batches(lengths, size, seed=seed, epoch=epoch)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    assert len(batches) == -(-len(lengths) // size)
    assert max(map(len, batches)) <= size
    assert max(map(len, batches)) - min(map(len, batches)) <= 1


@given(lengths_of_rows, sizes)
def test_token_counts_of_full_mini_batches_differ_by_at_most_the_range_of_lengths(lengths, size):
    lengths = lengths[: len(lengths) // size * size] or [1] * size
    totals = [sum(lengths[row] for row in batch) for batch in mini_batches(lengths, size, seed=0, epoch=0)]
    assert max(totals) - min(totals) <= max(lengths) - min(lengths)


def test_epochs_and_seeds_shuffle_anew_and_the_same_ones_do_not():
    lengths = [5] * 32
    first = mini_batches(lengths, 8, seed=1, epoch=0)
    assert first == mini_batches(lengths, 8, seed=1, epoch=0)
    assert first != mini_batches(lengths, 8, seed=1, epoch=1)
    assert first != mini_batches(lengths, 8, seed=2, epoch=0)


@given(lengths_of_rows, sizes, st.integers(1, 4))
def test_ranks_share_each_row_once_in_equally_many_micro_batches_with_balanced_tokens(lengths, size, ranks):
    rows = list(range(len(lengths)))
    shares = share_rows(rows, lengths, size, ranks)
    assert len(shares) == ranks
    assert sorted(row for share in shares for batch in share for row in batch) == rows
    assert len({len(share) for share in shares}) == 1, "a rank would wait for the others"
    assert len(shares[0]) == math.ceil(math.ceil(len(rows) / ranks) / size)
    assert all(len(batch) <= size for share in shares for batch in share)
    totals = [sum(lengths[row] for batch in share for row in batch) for share in shares]
    assert max(totals) - min(totals) <= max(lengths)
    for share in shares:
        tokens = [sum(lengths[row] for row in batch) for batch in share]
        assert max(tokens) - min(tokens) <= max(lengths)


def test_micro_batches_are_dealt_back_and_forth_from_the_longest():
    assert share_rows([0, 1, 2, 3], [4, 3, 2, 1], 2) == [[[0, 3], [1, 2]]]
    assert share_rows([0, 1, 2, 3], [4, 3, 2, 1], 2, ranks=2) == [[[0, 3]], [[1, 2]]]
    assert share_rows([0], [4], 2, ranks=2) == [[[0]], [[]]]
