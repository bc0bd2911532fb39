from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.numerics.value_loss import clipped_value_loss

NAN = float("nan")
number = st.floats(-5, 5)
tokens = st.lists(st.tuples(number, number, number), min_size=1, max_size=8)


def definition(rows, limit):
    total = 0.0
    for value, old, target in rows:
        clipped = min(max(value, old - limit), old + limit)
        total += 0.5 * max((value - target) ** 2, (clipped - target) ** 2)
    return total / len(rows)


def loss_of(rows, *, limit=0.2, padding=(), token_count=None):
    table = torch.tensor([*rows, *padding], dtype=torch.float64)
    values = table[:, 0].clone().requires_grad_()
    mask = torch.arange(len(table)) < len(rows)
    loss, metrics = clipped_value_loss(
        values, table[:, 1], table[:, 2], mask, value_clip_range=limit, token_count=token_count or len(rows)
    )
    loss.backward()
    return loss.item(), {name: value.item() for name, value in metrics.items()}, values.grad


@given(tokens, st.floats(0.05, 2.0))
def test_the_loss_matches_the_definition_and_padding_changes_nothing(rows, limit):
    loss, metrics, gradient = loss_of(rows, limit=limit)
    assert loss == pytest.approx(definition(rows, limit), rel=1e-9, abs=1e-12)
    padded_loss, padded_metrics, padded_gradient = loss_of(rows, limit=limit, padding=[(NAN, NAN, NAN)] * 2)
    assert padded_loss == pytest.approx(loss, rel=1e-12)
    assert padded_metrics == pytest.approx(metrics, rel=1e-12)
    torch.testing.assert_close(padded_gradient, torch.cat([gradient, gradient.new_zeros(2)]))


@given(tokens, tokens)
def test_micro_batches_add_up_to_the_mini_batch(first, second):
    whole = loss_of([*first, *second])
    parts = [loss_of(rows, token_count=len(first) + len(second)) for rows in (first, second)]
    for name, value in whole[1].items():
        assert value == pytest.approx(sum(part[1][name] for part in parts), rel=1e-9, abs=1e-12)
    torch.testing.assert_close(whole[2], torch.cat([parts[0][2], parts[1][2]]))


def test_a_value_that_moved_past_the_clip_towards_its_target_gets_no_gradient():
    _, metrics, gradient = loss_of([(0.5, 0.0, 3.0), (0.1, 0.0, 3.0), (-0.5, 0.0, 3.0)])
    assert (gradient != 0).tolist() == [False, True, True]
    assert metrics["update/value_clip_fraction"] == pytest.approx(1 / 3)
    assert metrics["update/value_mean"] == pytest.approx(0.1 / 3)
    assert metrics["update/value_squared_error"] == pytest.approx((2.5**2 + 2.9**2 + 3.5**2) / 3)


def test_a_value_that_moved_less_than_the_clip_range_is_never_counted_as_clipped():
    draw = torch.Generator().manual_seed(0)
    old, moved, returns = torch.randn(3, 4096, generator=draw)  # old + (moved - old) is not always moved, by rounding
    _, metrics = clipped_value_loss(
        moved, old, returns, torch.ones(4096, dtype=torch.bool), value_clip_range=100.0, token_count=4096
    )
    assert metrics["update/value_clip_fraction"] == 0.0
