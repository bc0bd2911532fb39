from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.errors import ConfigError
from rlhf_core.numerics.policy_loss import PolicyClip, ppo_policy_loss

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


def objective_of(new, old, advantage, low, high, dual):
    """Oracle: the cases of the dual-clip paper's eq. 5, with two clip ranges, in Python floats."""
    ratio = math.exp(new - old)
    objective = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    return max(objective, dual * advantage) if advantage < 0 else objective


@given(tokens, st.floats(0.05, 0.5), st.floats(0.05, 2), st.floats(1.1, 8))
def test_two_clip_ranges_and_the_dual_clip_match_the_definition(rows, low, high, dual):
    loss, metrics, _ = loss_of(rows, clip_range=PolicyClip(low, high, dual))
    assert loss == pytest.approx(-sum(objective_of(*row, low, high, dual) for row in rows) / len(rows), abs=1e-9)
    bounded = sum(row[2] < 0 and math.exp(row[0] - row[1]) > dual for row in rows)
    assert metrics["update/dual_clip_fraction"] == pytest.approx(bounded / len(rows))


@given(tokens, st.floats(0.05, 0.5))
def test_a_clip_range_alone_is_the_same_below_and_above(rows, clip_range):
    assert loss_of(rows, clip_range=clip_range)[:2] == loss_of(rows, clip_range=PolicyClip(clip_range, clip_range))[:2]


def test_clip_higher_leaves_room_above_and_none_more_below():
    moved = [(math.log(1.25), 0.0, 1.0), (math.log(0.75), 0.0, -1.0)]
    assert (loss_of(moved, clip_range=PolicyClip(0.2))[2] != 0).tolist() == [False, False]
    assert (loss_of(moved, clip_range=PolicyClip(0.2, 0.28))[2] != 0).tolist() == [True, False]


def test_the_dual_clip_ends_the_pull_of_a_bad_token_that_became_likely():
    moved = [(math.log(4.0), 0.0, -1.0), (math.log(2.0), 0.0, -1.0), (math.log(4.0), 0.0, 1.0)]
    loss, metrics, gradient = loss_of(moved, clip_range=PolicyClip(0.2, dual_clip=3.0))
    assert loss == pytest.approx((3.0 + 2.0 - 1.2) / 3)
    assert gradient.tolist() == pytest.approx([0.0, 2 / 3, 0.0])
    assert metrics["update/dual_clip_fraction"] == pytest.approx(1 / 3)


@given(tokens, st.lists(st.floats(0, 3), min_size=8, max_size=8))
def test_a_weight_in_the_advantage_weighs_the_loss_of_its_token(rows, weights):
    clip = PolicyClip(0.2, 0.3, 2.0)
    weighted = [(new, old, advantage * w) for (new, old, advantage), w in zip(rows, weights, strict=False)]
    want = sum(w * loss_of([row], clip_range=clip)[0] for row, w in zip(rows, weights, strict=False))
    assert loss_of(weighted, clip_range=clip, token_count=1)[0] == pytest.approx(want, rel=1e-9, abs=1e-9)


@given(tokens)
def test_case_N01_padding_does_not_reach_the_dual_clip(rows):
    clip = PolicyClip(0.2, 0.3, 2.0)
    padded = loss_of(rows, clip_range=clip, padding=[(NAN, NAN, -1.0), (0.0, -50.0, -NAN)])
    loss, metrics, _ = loss_of(rows, clip_range=clip)
    assert padded[0] == pytest.approx(loss, rel=1e-12)
    assert padded[1] == pytest.approx(metrics, rel=1e-12)
    assert torch.isfinite(padded[2]).all()


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ((0.0,), "clip_range=0.0"),
        ((1.0,), "clip_range=1.0"),
        ((NAN,), "clip_range=nan"),
        ((0.2, 0.0), "clip_range_high=0.0"),
        ((0.2, None, 1.0), "dual_clip=1.0"),
        ((0.2, None, NAN), "dual_clip=nan"),
    ],
)
def test_an_impossible_clip_is_refused(settings, name):
    with pytest.raises(ConfigError, match=name):
        PolicyClip(*settings)
