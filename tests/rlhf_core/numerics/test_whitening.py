from __future__ import annotations

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.numerics.whitening import scale_to_unit_variance, whiten

NAN = float("nan")
values = st.lists(st.floats(-100, 100), min_size=2, max_size=10)


def padded(row, width):
    x = torch.tensor([*row, *[NAN] * (width - len(row))], dtype=torch.float64)
    return x, torch.arange(width) < len(row)


@given(values, st.integers(0, 64))
def test_case_E09_whitening_matches_the_definition_whatever_the_padding(row, padding):
    x, mask = padded(row, len(row) + padding)
    mean, std = statistics.fmean(row), statistics.pstdev(row)
    want = torch.tensor([(value - mean) / (std + 1e-8) for value in row], dtype=torch.float64)
    whitened = whiten(x, mask)
    torch.testing.assert_close(whitened[mask], want, rtol=1e-6, atol=1e-5)
    assert not whitened[~mask].any()


@pytest.mark.parametrize("function", [whiten, scale_to_unit_variance])
def test_case_N11_a_mask_with_no_element_gives_zeros(function):
    assert function(torch.tensor([NAN, 3.0]), torch.tensor([False, False])).tolist() == [0.0, 0.0]
    assert function(torch.empty(0), torch.empty(0, dtype=torch.bool)).tolist() == []


def test_case_N11_a_mask_with_one_element_gives_zero():
    assert whiten(torch.tensor([NAN, 3.0]), torch.tensor([False, True])).tolist() == [0.0, 0.0]


def test_case_N04_equal_advantages_whiten_to_zero():
    assert whiten(torch.full((9,), 0.35), torch.ones(9, dtype=torch.bool)).abs().max() < 1e-6


def test_whitening_sums_over_ranks():
    x, other = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([3.0, 8.0], dtype=torch.float64)
    mean = statistics.fmean([1, 2, 3, 8])
    other_sums = iter([torch.tensor([11.0, 2.0]), (other - mean).square().sum().reshape(1)])
    whitened = whiten(x, torch.ones(2, dtype=torch.bool), lambda mine: mine + next(other_sums))
    want = (x - mean) / statistics.pstdev([1, 2, 3, 8])
    torch.testing.assert_close(whitened, want, rtol=1e-7, atol=1e-7)


@given(st.lists(st.integers(-100, 100), unique=True, min_size=2, max_size=10))
def test_scaling_gives_unit_variance_and_keeps_every_sign(row):
    x, mask = padded(row, len(row) + 3)
    scaled = scale_to_unit_variance(x, mask)[mask]
    torch.testing.assert_close(scaled.std(correction=0).item(), 1.0, rtol=1e-4, atol=0)
    assert torch.equal(scaled.sign(), x[mask].sign())


def test_case_N04_scaling_leaves_values_without_spread_as_they_are():
    x = torch.tensor([0.35, 0.35, NAN])
    assert scale_to_unit_variance(x, torch.tensor([True, True, False])).tolist() == pytest.approx([0.35, 0.35, 0.0])
    assert scale_to_unit_variance(x, torch.tensor([True, False, False])).tolist() == pytest.approx([0.35, 0.0, 0.0])
