from __future__ import annotations

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.errors import ConfigError
from rlhf_core.rewards.normalise import (
    Calibration,
    adaptive_temperature,
    clip_scores,
    normalise_in_groups,
    normalise_scores,
    scores_tensor,
)

score = st.floats(-50, 50)
ALL = pytest.mark.parametrize("mode", ["batch", "running", "calibrated", "none"])


def normalised(scores, **options):
    tensor = scores_tensor(scores)
    options.setdefault("valid", torch.ones(len(scores), dtype=torch.bool))
    options.setdefault("calibration", Calibration(mean=1.0, std=2.0))
    return normalise_scores(tensor, **options)


@given(st.lists(score, min_size=1, max_size=10))
def test_batch_mode_matches_the_definition(scores):
    result = normalised(scores, mode="batch")
    mean, std = statistics.fmean(scores), statistics.pstdev(scores)
    want = torch.tensor([(value - mean) / (std + 1e-8) for value in scores], dtype=torch.float64)
    torch.testing.assert_close(result.values, want, rtol=1e-6, atol=1e-5)
    assert (result.mean, result.std) == pytest.approx((mean, std), rel=1e-9, abs=1e-9)


@ALL
@given(
    others=st.lists(score, min_size=1, max_size=6),
    bad=st.sampled_from([None, float("nan"), float("inf"), -float("inf")]),
)
def test_case_N03_a_bad_score_leaves_the_others_as_if_it_were_absent(mode, others, bad):
    place = len(others) // 2
    with_bad = normalised([*others[:place], bad, *others[place:]], mode=mode)
    without = normalised(others, mode=mode)
    kept = with_bad.included
    assert kept.tolist() == [i != place for i in range(len(others) + 1)]
    torch.testing.assert_close(with_bad.values[kept], without.values, rtol=1e-12, atol=1e-12)
    assert with_bad.values[place] == 0.0
    assert (with_bad.excluded_count, without.excluded_count) == (1, 0)
    assert (with_bad.mean, with_bad.std, with_bad.running) == (without.mean, without.std, without.running)


def test_a_row_that_is_invalid_anyway_is_left_out_and_not_counted_as_excluded():
    valid = torch.tensor([True, False, False, True])
    result = normalised([1.0, 100.0, None, 3.0], valid=valid, mode="batch")
    assert result.values.tolist() == pytest.approx([-1.0, 0.0, 0.0, 1.0])
    assert result.excluded_count == 0


@pytest.mark.parametrize("mode", ["batch", "running"])
def test_case_N04_equal_scores_give_zeros_and_say_so(mode):
    result = normalised([0.35] * 7, mode=mode)
    assert result.values.abs().max() < 1e-6
    assert result.zero_std_fraction == 1.0
    assert normalised([0.35, 0.4], mode=mode).zero_std_fraction == 0.0


@ALL
def test_case_N11_nothing_to_normalise_gives_nothing_and_one_score_no_nan(mode):
    assert normalised([], mode=mode).values.tolist() == []
    assert normalised([None], mode=mode).values.tolist() == [0.0]
    assert torch.isfinite(normalised([5.0], mode=mode).values).all()


@pytest.mark.parametrize("mode", ["batch", "running"])
def test_one_score_gives_zero(mode):
    assert normalised([5.0], mode=mode).values.tolist() == [0.0]


def test_running_mode_uses_all_batches_so_far():
    first = normalised([1.0, 3.0], mode="running")
    second = normalised([8.0], mode="running", running=first.running)
    mean, std = statistics.fmean([1, 3, 8]), statistics.pstdev([1, 3, 8])
    assert second.values.tolist() == pytest.approx([(8 - mean) / std], rel=1e-6)
    assert second.running.count == 3


def test_calibrated_and_none_do_not_look_at_the_batch():
    assert normalised([1.0, 5.0], mode="calibrated").values.tolist() == pytest.approx([0.0, 2.0])
    assert normalised([1.0, 5.0], mode="none").values.tolist() == [1.0, 5.0]


@pytest.mark.parametrize("calibration", [None, Calibration(mean=0.0, std=0.0), Calibration(mean=0.0, std=float("nan"))])
def test_a_calibration_that_cannot_be_divided_by_is_refused(calibration):
    with pytest.raises(ConfigError, match="needs the mean and std of the baseline"):
        normalised([1.0], mode="calibrated", calibration=calibration)


def test_statistics_are_those_of_all_ranks():
    whole = [1.0, 2.0, 3.0, 8.0]
    mean = statistics.fmean(whole)
    others = iter([[11.0, 2.0], [(3 - mean) ** 2 + (8 - mean) ** 2], [1.0]])
    result = normalised([1.0, 2.0], mode="batch", all_reduce=lambda x: x + torch.tensor(next(others), dtype=x.dtype))
    assert result.std == pytest.approx(statistics.pstdev(whole))
    assert result.excluded_count == 1


@given(st.lists(score, max_size=10), st.floats(0.1, 40))
def test_clipping_keeps_the_limit_and_tells_the_share_it_changed(scores, limit):
    values, fraction = clip_scores(scores_tensor(scores), limit)
    assert values.tolist() == [min(max(value, -limit), limit) for value in scores]
    changed = sum(not -limit <= value <= limit for value in scores)
    assert fraction == pytest.approx(changed / len(scores) if scores else 0.0)


def in_groups(scores, group_ids, valid=None, **options):
    valid = [True] * len(scores) if valid is None else valid
    ids = torch.tensor(group_ids, dtype=torch.int64)
    return normalise_in_groups(scores_tensor(scores), torch.tensor(valid, dtype=torch.bool), ids, **options)


def test_within_groups_a_score_is_measured_against_its_own_prompt():
    result = in_groups([1.0, 10.0, 3.0, 10.0, 5.0], [7, 2, 7, 2, 9])
    assert result.values.tolist() == pytest.approx([-1.0, 0.0, 1.0, 0.0, 0.0], rel=1e-12)
    assert result.zero_std_fraction == pytest.approx(2 / 3)
    everything = [1, 10, 3, 10, 5]
    assert (result.mean, result.std) == pytest.approx((statistics.fmean(everything), statistics.pstdev(everything)))
    assert result.running is None


@given(
    others=st.lists(score, min_size=1, max_size=6),
    bad=st.sampled_from([None, float("nan"), float("inf"), -float("inf")]),
)
def test_case_N03_within_groups_a_bad_score_leaves_the_others_as_if_it_were_absent(others, bad):
    ids = [i % 2 for i in range(len(others))]
    with_bad, without = in_groups([*others, bad], [*ids, 0]), in_groups(others, ids)
    assert with_bad.values.tolist() == [*without.values.tolist(), 0.0]
    assert (with_bad.excluded_count, without.excluded_count) == (1, 0)
    assert (with_bad.mean, with_bad.std) == (without.mean, without.std)
    assert with_bad.zero_std_fraction == without.zero_std_fraction


def test_within_groups_an_invalid_row_is_left_out_and_not_counted_as_excluded():
    result = in_groups([1.0, 100.0, 3.0], [0, 0, 0], valid=[True, False, True])
    assert result.values.tolist() == pytest.approx([-1.0, 0.0, 1.0])
    assert (result.included.tolist(), result.excluded_count) == ([True, False, True], 0)


def test_within_groups_what_is_reported_is_of_all_ranks():
    whole = [1.0, 2.0, 3.0, 8.0]
    mean = statistics.fmean(whole)
    others = iter([[11.0, 2.0], [(3 - mean) ** 2 + (8 - mean) ** 2], [1.0], [1.0, 1.0]])
    result = in_groups([1.0, 2.0], [0, 0], all_reduce=lambda x: x + torch.tensor(next(others), dtype=x.dtype))
    assert (result.mean, result.std) == pytest.approx((mean, statistics.pstdev(whole)))
    assert (result.excluded_count, result.zero_std_fraction) == (1, 0.5)


@given(st.lists(score, max_size=10))
def test_R4_the_temperature_is_the_batchs_deviation_between_a_tenth_and_one(scores):
    want = min(max(statistics.pstdev(scores) if scores else 0.0, 0.1), 1.0)
    got = adaptive_temperature(scores_tensor([*scores, None]), torch.ones(len(scores) + 1, dtype=torch.bool))
    assert got == pytest.approx(want, rel=1e-9)


def test_R4_the_temperature_is_of_all_ranks_and_of_the_rows_that_count():
    others = iter([[2.5, 2.0], [0.5]])
    temperature = adaptive_temperature(
        scores_tensor([1.0, 2.0, 50.0]),
        torch.tensor([True, True, False]),
        all_reduce=lambda x: x + torch.tensor(next(others), dtype=x.dtype),
    )
    assert temperature == pytest.approx(((0.375**2 + 0.625**2 + 0.5) / 4) ** 0.5)
