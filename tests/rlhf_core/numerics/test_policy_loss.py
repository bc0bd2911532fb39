from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.numerics.policy_loss import ppo_policy_loss

NAN = float("nan")
tokens = st.lists(st.tuples(st.floats(-4, 0), st.floats(-4, 0), st.floats(-3, 3)), min_size=1, max_size=8)


def definition(rows, clip_range):
    """Oracle: eq. 7 token by token in Python floats, and the share of tokens where the clip is what counts."""
    total, clipped = 0.0, 0
    for new, old, advantage in rows:
        ratio = math.exp(new - old)
        bounded = min(max(ratio, 1 - clip_range), 1 + clip_range)
        total -= min(ratio * advantage, bounded * advantage)
        clipped += bounded * advantage < ratio * advantage
    return total / len(rows), clipped / len(rows)


def loss_of(rows, *, clip_range=0.2, padding=(), token_count=None, dtype=torch.float64):
    table = torch.tensor([*rows, *padding], dtype=dtype)
    logprobs = table[:, 0].clone().requires_grad_()
    mask = torch.arange(len(table)) < len(rows)
    loss, metrics = ppo_policy_loss(
        logprobs, table[:, 1], table[:, 2], mask, clip_range=clip_range, token_count=token_count or len(rows)
    )
    loss.backward()
    return loss.item(), {name: value.item() for name, value in metrics.items()}, logprobs.grad


@given(tokens, st.floats(0.05, 0.5))
def test_loss_and_metrics_match_the_definition(rows, clip_range):
    loss, metrics, _ = loss_of(rows, clip_range=clip_range)
    want, clip_fraction = definition(rows, clip_range)
    log_ratios = [new - old for new, old, _ in rows]
    assert loss == pytest.approx(want, rel=1e-9, abs=1e-9)
    assert metrics == pytest.approx(
        {
            "update/policy_loss": want,
            "update/clip_fraction": clip_fraction,
            "update/approx_kl_nats": sum(math.exp(x) - 1 - x for x in log_ratios) / len(rows),
            "update/ratio_mean": sum(map(math.exp, log_ratios)) / len(rows),
            "update/ratio_max": max(map(math.exp, log_ratios)),
        },
        rel=1e-9,
        abs=1e-9,
    )


@given(tokens, st.sampled_from([(NAN, NAN, NAN), (0.0, NAN, 1.0), (NAN, 0.0, 1.0), (-1.0, 5e4, float("inf"))]))
def test_case_N01_what_the_mask_hides_changes_neither_loss_nor_metrics_nor_gradients(rows, hidden):
    loss, metrics, gradient = loss_of(rows)
    padded_loss, padded_metrics, padded_gradient = loss_of(rows, padding=[hidden] * 3)
    assert padded_loss == pytest.approx(loss, rel=1e-12)
    assert padded_metrics == pytest.approx(metrics, rel=1e-12)
    torch.testing.assert_close(padded_gradient, torch.cat([gradient, gradient.new_zeros(3)]))


@given(tokens, tokens)
def test_micro_batches_add_up_to_the_mini_batch(first, second):
    count = len(first) + len(second)
    whole = loss_of([*first, *second])
    parts = [loss_of(rows, token_count=count) for rows in (first, second)]
    assert whole[0] == pytest.approx(parts[0][0] + parts[1][0], rel=1e-9, abs=1e-12)
    torch.testing.assert_close(whole[2], torch.cat([parts[0][2], parts[1][2]]))
    for name, value in whole[1].items():
        combine = max if name == "update/ratio_max" else sum
        assert value == pytest.approx(combine(part[1][name] for part in parts), rel=1e-9, abs=1e-12)


def test_the_gradient_at_ratio_one_is_that_of_the_policy_gradient():
    _, metrics, gradient = loss_of([(-1.0, -1.0, 2.0), (-0.5, -0.5, -3.0)])
    assert gradient.tolist() == pytest.approx([-1.0, 1.5])
    assert metrics["update/ratio_mean"] == 1.0
    assert metrics["update/approx_kl_nats"] == 0.0


def test_clipping_stops_only_a_move_that_has_gone_far_enough_in_the_wanted_direction():
    moved = [(0.0, -1.0, 1.0), (0.0, -1.0, -1.0), (-1.0, 0.0, -1.0), (-1.0, 0.0, 1.0)]
    _, metrics, gradient = loss_of(moved)
    assert (gradient != 0).tolist() == [False, True, False, True]
    assert metrics["update/clip_fraction"] == 0.5


def test_a_huge_log_ratio_overflows_nothing_and_the_kl_is_not_clamped():
    loss, metrics, gradient = loss_of([(0.0, -200.0, -1.0), (-5.0, 0.0, 1.0)], dtype=torch.float32)
    assert math.isfinite(loss)
    assert torch.isfinite(gradient).all()
    assert metrics["update/approx_kl_nats"] == pytest.approx((math.exp(200) - 201 + math.exp(-5) + 4) / 2)


def test_case_N11_a_micro_batch_without_tokens_is_worth_nothing():
    loss, metrics, gradient = loss_of([], padding=[(NAN, NAN, NAN)], token_count=5)
    assert loss == 0.0
    assert set(metrics.values()) == {0.0}
    assert gradient.tolist() == [0.0]
