from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.control.gae_lambda import gae_lambda_by_length, staged_gae_lambda
from rlhf_core.errors import ConfigError


def test_lambda_by_length_goes_through_points_worked_by_hand():
    lengths = torch.tensor([0, 1, 128, 129, 224, 320, 512, 513, 10_000])
    want = [0.95, 0.95, 0.95, 0.95 - 0.1 / 384, 0.925, 0.9, 0.85, 0.85, 0.85]
    got = gae_lambda_by_length(lengths)
    assert got.tolist() == pytest.approx(want, rel=1e-12)
    assert got.dtype == torch.float64


@given(st.lists(st.integers(0, 5000), min_size=2, max_size=8))
def test_a_longer_response_never_has_a_larger_lambda(lengths):
    values = gae_lambda_by_length(torch.tensor(sorted(lengths))).tolist()
    assert values == sorted(values, reverse=True)
    assert all(0.85 <= value <= 0.95 for value in values)


@pytest.mark.parametrize(
    ("iteration", "want"), [(0, 0.9), (49, 0.9), (50, 0.95), (99, 0.95), (100, 0.98), (9999, 0.98)]
)
def test_a_stage_starts_at_its_border(iteration, want):
    assert staged_gae_lambda(iteration, borders=(50, 100)) == want


def test_one_value_needs_no_border():
    assert staged_gae_lambda(7, borders=(), values=(0.9,)) == 0.9


@pytest.mark.parametrize(
    ("borders", "values"), [((100, 50), None), ((50, 50), None), ((50,), None), ((), ()), ((1,), (0.9, 1.1))]
)
def test_stages_that_do_not_fit_are_refused(borders, values):
    with pytest.raises(ConfigError, match="gae_lambda"):
        staged_gae_lambda(0, borders=borders, **({} if values is None else {"values": values}))


@pytest.mark.parametrize(
    "change", [{"short_tokens": 512}, {"short_tokens": -1}, {"long_lambda": -0.1}, {"short_lambda": 1.1}]
)
def test_lengths_and_lambdas_that_make_no_line_are_refused(change):
    with pytest.raises(ConfigError, match="gae_lambda"):
        gae_lambda_by_length(torch.tensor([1]), **change)
