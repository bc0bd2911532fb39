from __future__ import annotations

import statistics
import threading

import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.numerics.reductions import global_moments

number = st.floats(-1e3, 1e3)
rows = st.lists(st.tuples(number, st.booleans()), max_size=12)


class Ranks:
    """Threads that sum as ranks would; a rank that calls less often than the others breaks the barrier."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count, timeout=10)
        self._given: dict[int, torch.Tensor] = {}

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        assert tensor.dtype == torch.float64
        self._given[threading.get_ident()] = tensor
        self._barrier.wait()
        total = torch.stack(list(self._given.values())).sum(dim=0)
        self._barrier.wait()
        return total

    def run(self, jobs):
        results = [None] * len(jobs)

        def work(rank):
            results[rank] = jobs[rank](self.all_reduce)

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(jobs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


def tensors(pairs):
    values = torch.tensor([value for value, _ in pairs], dtype=torch.float64)
    return values, torch.tensor([is_valid for _, is_valid in pairs], dtype=torch.bool)


@given(rows)
def test_moments_are_those_of_the_statistics_module(pairs):
    values, mask = tensors(pairs)
    moments = global_moments(values.masked_fill(~mask, float("nan")), mask)
    kept = [value for value, is_valid in pairs if is_valid]
    assert moments.count == len(kept)
    torch.testing.assert_close(moments.mean, statistics.fmean(kept) if kept else 0.0, rtol=1e-12, atol=1e-10)
    torch.testing.assert_close(moments.std, statistics.pstdev(kept) if kept else 0.0, rtol=1e-9, atol=1e-9)


def test_two_ranks_get_the_moments_of_one_rank_with_all_values_even_when_one_has_none():
    values, mask = tensors([(1.0, True), (2.5, True), (9.0, False), (-4.0, True), (0.0, False)])
    parts = [slice(0, 4), slice(4, 5)]
    jobs = [lambda reduce, part=part: global_moments(values[part], mask[part], reduce) for part in parts]
    whole = global_moments(values, mask)
    assert Ranks(2).run(jobs) == [whole, whole]


def test_a_small_spread_around_a_large_mean_does_not_cancel():
    values = torch.tensor([1e8, 1e8 + 1, 1e8 + 2], dtype=torch.float64)
    torch.testing.assert_close(global_moments(values, torch.ones(3, dtype=torch.bool)).std, (2 / 3) ** 0.5)


def test_case_N04_equal_values_have_no_spread():
    assert global_moments(torch.full((7,), 0.35), torch.ones(7, dtype=torch.bool)).is_constant
