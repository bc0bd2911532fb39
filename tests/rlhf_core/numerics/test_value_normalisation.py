from __future__ import annotations

import json
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.numerics.running_stats import RunningStats
from rlhf_core.numerics.value_loss import clipped_value_loss
from rlhf_core.numerics.value_normalisation import RETURN_STD_FLOOR, denormalise_values, normalise_returns

number = st.floats(-100, 100)


def stats_of(values):
    x = torch.tensor(values, dtype=torch.float64)
    return RunningStats().including(x, torch.ones(len(values), dtype=torch.bool))


def everywhere(x):
    return torch.ones_like(x, dtype=torch.bool)


@given(st.lists(number, min_size=1, max_size=8), st.lists(number, min_size=1, max_size=8))
def test_returns_are_measured_in_deviations_of_all_returns_so_far(past, returns):
    got = normalise_returns(torch.tensor(returns, dtype=torch.float64), torch.ones(len(returns)).bool(), stats_of(past))
    mean, std = statistics.fmean(past), max(statistics.pstdev(past), RETURN_STD_FLOOR)
    assert got.tolist() == pytest.approx([(x - mean) / std for x in returns], rel=1e-6, abs=1e-6)


@given(st.lists(number, max_size=8), st.lists(number, min_size=1, max_size=8))
def test_one_undoes_the_other(past, values):
    stats, x = stats_of(past), torch.tensor(values, dtype=torch.float64)
    torch.testing.assert_close(denormalise_values(normalise_returns(x, everywhere(x), stats), stats), x)


def test_without_statistics_nothing_changes_and_equal_returns_divide_by_the_floor():
    x = torch.tensor([3.0, 5.0])
    assert normalise_returns(x, everywhere(x), RunningStats()).tolist() == [3.0, 5.0]
    assert denormalise_values(x, RunningStats()).tolist() == [3.0, 5.0]
    assert normalise_returns(x, everywhere(x), stats_of([3.0, 3.0])).tolist() == pytest.approx([0.0, 200.0])


def test_padding_is_zero_whatever_it_holds_and_the_dtype_stays():
    x, mask = torch.tensor([[1.0, float("nan")]]), torch.tensor([[True, False]])
    got = normalise_returns(x, mask, stats_of([0.0, 2.0]))
    assert (got.tolist(), got.dtype) == ([[0.0, 0.0]], torch.float32)
    assert denormalise_values(got, stats_of([0.0, 2.0])).dtype == torch.float32


def test_the_state_survives_json():
    stats = stats_of([1.0, 2.5, 9.0])
    assert RunningStats.from_state_dict(json.loads(json.dumps(stats.state_dict()))) == stats


def critic_run(*, normalise):
    """Value losses of 60 iterations in which returns grow from 4 to 20; the critic is one number that learns."""
    generator = torch.Generator().manual_seed(0)
    output, stats, losses = torch.zeros((), dtype=torch.float64), RunningStats(), []
    for level in torch.linspace(4.0, 20.0, 60, dtype=torch.float64):
        returns = level + torch.randn(64, generator=generator, dtype=torch.float64)
        mask = everywhere(returns)
        if normalise:
            stats = stats.including(returns, mask)
        targets = normalise_returns(returns, mask, stats)
        weight = output.clone().requires_grad_()
        values = weight.expand(64)
        loss, _ = clipped_value_loss(values, values.detach(), targets, mask, value_clip_range=0.2, token_count=64)
        loss.backward()
        output = output - 0.05 * weight.grad
        losses.append(loss.item())
    error = denormalise_values(output, stats) - 20.0
    return losses, abs(error.item())


def test_case_N06_the_normalised_value_loss_stays_bounded_while_returns_grow_from_4_to_20():
    normalised, error = critic_run(normalise=True)
    raw, raw_error = critic_run(normalise=False)
    assert max(normalised) < 1
    assert max(raw) > 10
    assert error < raw_error
