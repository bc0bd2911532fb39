"""Paired comparison and intervals."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.errors import DataError
from rlhf_core.evaluation.comparison import (
    benchmark_scores,
    blind_benchmarks,
    bootstrap_interval,
    compare_items,
    mcnemar_p_value,
    mean,
    wilson_interval,
)

answers = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30)


def frame(correct: list[bool], margin: list[float] | None = None, name: str = "mmlu") -> pd.DataFrame:
    ids = [str(number) for number in range(len(correct))]
    margins = margin or [1.0 if right else -1.0 for right in correct]
    return pd.DataFrame({"benchmark": name, "task": name, "item_id": ids, "correct": correct, "margin": margins})


def flags(*groups: tuple[int, bool, bool]) -> tuple[np.ndarray, np.ndarray]:
    rows = [(before, after) for count, before, after in groups for _ in range(count)]
    return np.array([row[0] for row in rows]), np.array([row[1] for row in rows])


def test_wilson_interval_equals_the_worked_example():
    low, high = wilson_interval(8, 10, 0.95)
    assert (low, high) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    assert wilson_interval(0, 0, 0.95) == (0.0, 1.0)


def test_mcnemar_p_value_is_that_of_a_fair_coin():
    before, after = flags((5, True, False), (1, False, True), (20, True, True))
    assert mcnemar_p_value(before, after) == pytest.approx(2 * (1 + 6) / 2**6)
    assert mcnemar_p_value(before, before) == 1.0


@settings(max_examples=25, deadline=None)
@given(answers)
def test_the_drop_is_the_difference_of_accuracies_and_swapping_the_sides_negates_it(rows):
    before, after = (np.array(side) for side in zip(*rows, strict=True))
    margins = (before.astype(float), after.astype(float))
    there = compare_items((before, after), margins, confidence=0.9, seed=1)
    back = compare_items((after, before), margins[::-1], confidence=0.9, seed=1)
    assert there.drop == pytest.approx(before.mean() - after.mean(), abs=1e-12)
    assert there.drop_low <= there.drop + 1e-12 and there.drop - 1e-12 <= there.drop_high
    assert back.drop == pytest.approx(-there.drop, abs=1e-12)
    assert back.p_value == pytest.approx(there.p_value)
    assert (back.drop_low, back.drop_high) == pytest.approx((-there.drop_high, -there.drop_low), abs=1e-9)


def test_bootstrap_interval_agrees_with_the_normal_one_on_many_values():
    values = np.random.default_rng(0).normal(3.0, 2.0, size=1000)
    low, high = bootstrap_interval((values,), mean, confidence=0.95, seed=3)
    half = 1.96 * values.std() / 1000**0.5
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.01)
    assert (low, high) == bootstrap_interval((values,), mean, confidence=0.95, seed=3)


def test_a_loss_of_ten_percent_on_five_hundred_items_is_seen_and_equal_exchange_is_not():
    same = (np.zeros(500), np.zeros(500))
    lost = compare_items(flags((60, True, False), (10, False, True), (430, True, True)), same, confidence=0.95, seed=0)
    assert lost.drop == pytest.approx(0.1)
    assert lost.drop_low > 0.05 and lost.p_value < 1e-6
    even = compare_items(flags((35, True, False), (35, False, True), (430, True, True)), same, confidence=0.95, seed=0)
    assert even.drop_low < 0 < even.drop_high and even.p_value == 1.0


def test_margins_show_a_loss_before_any_answer_changes():
    baseline, candidate = frame([True] * 40, [2.0] * 40), frame([True] * 40, [1.5 + 0.01 * n for n in range(40)])
    (score,) = benchmark_scores(baseline, candidate, 0.95, 0)
    assert score.drop == 0.0 and score.p_value == 1.0
    assert score.margin_drop == pytest.approx(2.0 - 1.695)
    assert 0 < score.margin_drop_low < score.margin_drop < score.margin_drop_high


def test_items_are_paired_by_name_whatever_their_order():
    baseline = pd.concat([frame([True, False, True, True]), frame([True, True], name="hellaswag")])
    hellaswag, mmlu = benchmark_scores(baseline, baseline.iloc[::-1], 0.95, 0)
    assert (hellaswag.name, hellaswag.items, hellaswag.accuracy) == ("hellaswag", 2, 1.0)
    assert (mmlu.name, mmlu.items, mmlu.accuracy, mmlu.drop, mmlu.drop_high) == ("mmlu", 4, 0.75, 0.0, 0.0)
    assert mmlu.low < 0.75 < mmlu.high


@pytest.mark.parametrize("candidate", [frame([True]), frame([True, True, True]), frame([True, True], name="other")])
def test_other_items_than_the_baselines_are_refused(candidate):
    with pytest.raises(DataError, match="other benchmark items"):
        benchmark_scores(frame([True, True]), candidate, 0.95, 0)


def test_no_benchmark_gives_no_score():
    assert benchmark_scores(frame([]), frame([]), 0.95, 0) == ()


def items_of(benchmark: str, right: int, total: int, options: int) -> pd.DataFrame:
    rows = [{"benchmark": benchmark, "correct": i < right, "loglikelihoods": [0.0] * options} for i in range(total)]
    return pd.DataFrame(rows)


def test_a_benchmark_that_is_answered_by_guessing_is_named_with_its_chance():
    items = pd.concat(
        [
            items_of("below", 105, 500, 4),
            items_of("at_chance", 130, 500, 4),
            items_of("above", 190, 500, 4),
            items_of("two_options", 260, 500, 2),
        ]
    )
    blind = blind_benchmarks(items, 0.95)
    assert blind == {"below": (0.21, 0.25), "at_chance": (0.26, 0.25), "two_options": (0.52, 0.5)}
