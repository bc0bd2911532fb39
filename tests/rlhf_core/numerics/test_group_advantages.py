from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.errors import ConfigError
from rlhf_core.numerics.group_advantages import (
    GROUP_STD_FLOOR,
    group_baseline,
    grpo_advantages,
    rloo_advantages,
    uniform_groups,
    zero_std_fraction,
)

NAN = float("nan")
prompt = st.sampled_from([-7, 0, 3, 2**40])
rows = st.lists(st.tuples(prompt, st.floats(-50, 50), st.booleans()), max_size=12)


def tensors(table):
    ids, scores, included = zip(*table, strict=True) if table else ((), (), ())
    return (
        torch.tensor(scores, dtype=torch.float64),
        torch.tensor(ids, dtype=torch.int64),
        torch.tensor(included, dtype=torch.bool),
    )


def group_of(table, row):
    """All scores of the row's prompt that count."""
    return [score for prompt, score, counts in table if counts and prompt == row[0]]


def close(got, want):
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=1e-9, atol=1e-9)


@given(rows)
def test_grpo_matches_the_definition_and_what_is_excluded_gets_zero(table):
    def definition(row):
        if not row[2]:
            return 0.0
        group = group_of(table, row)
        return (row[1] - statistics.fmean(group)) / max(statistics.pstdev(group), GROUP_STD_FLOOR)

    close(grpo_advantages(*tensors(table)), [definition(row) for row in table])


@given(rows)
def test_rloo_is_the_score_minus_the_mean_of_the_others(table):
    def definition(row):
        others = group_of(table, row)
        if not row[2] or len(others) == 1:
            return 0.0
        others.remove(row[1])
        return row[1] - statistics.fmean(others)

    close(rloo_advantages(*tensors(table)), [definition(row) for row in table])


@given(rows)
def test_the_group_baseline_is_its_mean(table):
    want = [row[1] - statistics.fmean(group_of(table, row)) if row[2] else 0.0 for row in table]
    close(group_baseline(*tensors(table)), want)


@given(st.permutations(range(9)))
def test_the_order_of_rows_does_not_matter(order):
    table = [(i % 3, [0.35, 0.1, 7.0, 1e6, 2.0, -3.0, 0.0, 1.0, 0.7][i], i != 4) for i in range(9)]
    shuffled = [table[i] for i in order]
    for function in (grpo_advantages, rloo_advantages, group_baseline):
        torch.testing.assert_close(
            function(*tensors(shuffled)), function(*tensors(table))[list(order)], rtol=1e-12, atol=1e-9
        )
    assert torch.equal(uniform_groups(*tensors(shuffled)), uniform_groups(*tensors(table))[list(order)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_case_N02_one_score_beside_seven_equal_ones_is_not_blown_up(dtype):
    scores = torch.tensor([0.35] * 7 + [0.0], dtype=dtype)
    ids, included = torch.zeros(8, dtype=torch.int64), torch.ones(8, dtype=torch.bool)
    unscaled = grpo_advantages(scores, ids, included, scale="none", baseline="leave_one_out")
    assert unscaled.tolist() == pytest.approx([0.05] * 7 + [-0.35], rel=1e-6)
    scaled = grpo_advantages(scores, ids, included, baseline="leave_one_out")
    assert scaled.tolist() == pytest.approx([8 / 7 / math.sqrt(7)] * 7 + [-8 / math.sqrt(7)], rel=1e-6)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=10))
def test_no_advantage_exceeds_what_the_group_size_allows(scores):
    n = len(scores)
    table = [(0, score, True) for score in scores]
    leave_one_out = grpo_advantages(*tensors(table), baseline="leave_one_out")
    assert leave_one_out.abs().max() <= n / math.sqrt(n - 1) + 1e-9
    assert grpo_advantages(*tensors(table)).abs().max() <= math.sqrt(n - 1) + 1e-9


@given(st.floats(-1e6, 1e6), st.integers(1, 9))
def test_case_N04_equal_scores_and_a_group_of_one_give_exactly_zero(score, size):
    table = [(5, score, True)] * size
    for function in (grpo_advantages, rloo_advantages, group_baseline):
        assert function(*tensors(table)).tolist() == [0.0] * size
    assert uniform_groups(*tensors(table)).all()


def test_scores_that_differ_by_rounding_alone_teach_next_to_nothing():
    scores = torch.tensor([0.35, 0.35 + 3e-8], dtype=torch.float32)
    advantages = grpo_advantages(scores, torch.zeros(2, dtype=torch.int64), torch.ones(2, dtype=torch.bool))
    assert 0 < advantages.abs().max() < 1e-3


@pytest.mark.parametrize("odd", [(1, 9.0, False), (1, NAN, True), (1, float("inf"), True), (1, NAN, False)])
def test_case_E05_a_row_that_does_not_count_leaves_its_group_as_if_it_were_absent(odd):
    others = [(1, 1.0, True), (2, 4.0, True), (1, 3.0, True)]
    for function in (grpo_advantages, rloo_advantages, group_baseline, uniform_groups):
        whole, without = function(*tensors([*others[:1], odd, *others[1:]])), function(*tensors(others))
        assert torch.equal(whole[[0, 2, 3]], without)
        assert whole.dtype == torch.bool or whole[1] == 0.0


def test_groups_that_teach_nothing_are_named_and_counted_once():
    table = [(1, 0.5, True), (2, 1.0, True), (1, 0.5, True), (2, 0.0, True), (3, 1.0, True), (3, 0.0, False)]
    table += [(4, NAN, True)]
    assert uniform_groups(*tensors(table)).tolist() == [True, False, True, False, True, True, True]
    assert zero_std_fraction(*tensors(table)) == 0.75
    assert zero_std_fraction(*tensors([])) == 0.0
    other_rank = torch.tensor([0.0, 4.0], dtype=torch.float64)
    assert zero_std_fraction(*tensors(table), all_reduce=lambda counts: counts + other_rank) == 0.375


@pytest.mark.parametrize("floor", [0.0, -1.0, NAN])
def test_a_floor_that_is_none_is_refused(floor):
    with pytest.raises(ConfigError, match="std_floor"):
        grpo_advantages(*tensors([(1, 0.0, True)]), std_floor=floor)
