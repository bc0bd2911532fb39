from __future__ import annotations

import json
import statistics

import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.numerics.running_stats import RunningStats

batches = st.lists(st.lists(st.floats(-1e3, 1e3), max_size=5), max_size=5)


def after(rows):
    stats = RunningStats()
    for row in rows:
        x = torch.tensor(row, dtype=torch.float64)
        stats = stats.including(x, torch.ones(len(row), dtype=torch.bool))
    return stats


@given(batches)
def test_a_stream_has_the_statistics_of_all_its_values(rows):
    values = [value for row in rows for value in row]
    stats = after(rows)
    assert stats.count == len(values)
    torch.testing.assert_close(stats.mean, statistics.fmean(values) if values else 0.0, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(stats.std, statistics.pstdev(values) if values else 0.0, rtol=1e-7, atol=1e-7)


@given(batches, batches)
def test_merging_two_streams_is_the_stream_of_both(first, second):
    merged, whole = after(first).merged(after(second)), after([*first, *second])
    assert merged.count == whole.count
    torch.testing.assert_close(merged.mean, whole.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(merged.std, whole.std, rtol=1e-7, atol=1e-7)


def test_a_stored_stream_goes_on_bit_for_bit():
    stats = after([[0.1, 0.7], [3.3]])
    assert RunningStats.from_state_dict(json.loads(json.dumps(stats.state_dict()))) == stats


def test_a_small_spread_around_a_large_mean_does_not_cancel():
    stats = after([[1e8], [1e8 + 1], [1e8 + 2]])
    torch.testing.assert_close(stats.std, (2 / 3) ** 0.5, rtol=1e-9, atol=0)
