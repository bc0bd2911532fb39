from __future__ import annotations

from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.data.drawing import draw_indices, share_counts

counts = st.lists(st.integers(0, 9), min_size=1, max_size=12)


def all_draws(size: int, wanted: list[int], seed: int) -> list[list[int]]:
    return [draw_indices(size, wanted[: number + 1], seed) for number in range(len(wanted))]


@given(st.integers(1, 12), counts, st.integers(0, 2**31 - 1))
def test_every_pass_holds_each_index_once_however_the_draws_cut_it(size, wanted, seed):
    row = list(chain.from_iterable(all_draws(size, wanted, seed)))
    assert len(row) == sum(wanted)
    for start in range(0, len(row), size):
        part = row[start : start + size]
        assert len(set(part)) == len(part)
        assert len(part) < size or set(part) == set(range(size))


@given(st.integers(1, 12), counts, st.integers(0, 2**31 - 1))
def test_a_draw_has_an_index_twice_only_if_it_takes_more_than_there_are(size, wanted, seed):
    for draw in all_draws(size, wanted, seed):
        most = max(Counter(draw).values(), default=0)
        assert most <= (1 if len(draw) <= size else 2 + len(draw) // size)


def test_the_order_differs_between_passes_and_seeds():
    first, second = draw_indices(50, [50], 1), draw_indices(50, [50, 50], 1)
    assert first != second
    assert first != draw_indices(50, [50], 2)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6), st.integers(1, 64), st.integers(0, 1000))
def test_the_counts_of_an_iteration_add_up_and_stay_within_one_of_the_share(weights, count, seed):
    shares = [weight / sum(weights) for weight in weights]
    table = share_counts(shares, count, 20, seed)
    assert (table.sum(axis=1) == count).all()
    assert (np.abs(table - count * np.array(shares)) < 1 + 1e-9).all()
    np.testing.assert_array_equal(share_counts(shares, count, 7, seed), table[:7])


def test_a_share_below_one_place_comes_up_in_its_share_of_iterations():
    table = share_counts([0.9, 0.1], 4, 4000, 0)
    assert table[:, 1].mean() == pytest.approx(0.4, abs=0.03)
