import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rlhf_core.config.reward import RewardConfig
from rlhf_core.errors import ConfigError
from rlhf_core.rewards.normalise import Calibration
from rlhf_core.rewards.sequence_rewards import ResponseTexts, running_stats, sequence_rewards, should_score

N, E, T = "natural", "early", "truncated"
scores_of = st.lists(st.floats(-50, 50).map(lambda x: round(x, 3)), min_size=2, max_size=8)


def standardised(scores: list[float]) -> list[float]:
    """Oracle: (score - mean) / (population std + 1e-8), by the standard library."""
    return [(x - statistics.fmean(scores)) / (statistics.pstdev(scores) + 1e-8) for x in scores]


@given(scores_of)
def test_natural_responses_get_the_clipped_standardised_score(scores):
    found = sequence_rewards(scores, [N] * len(scores), RewardConfig(clip=1.0))
    for got, want in zip(found.rewards, standardised(scores), strict=True):
        assert abs(got - max(-1.0, min(1.0, want))) < 1e-5
    assert found.metrics["reward/raw_mean"] == pytest.approx(statistics.fmean(scores), abs=1e-9)
    assert found.metrics["reward/raw_std"] == pytest.approx(statistics.pstdev(scores), abs=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_case_N03_a_score_that_is_no_number_excludes_its_response_alone(bad):
    with_bad = sequence_rewards([1.0, bad, 3.0, 8.0], [N] * 4, RewardConfig())
    without = sequence_rewards([1.0, 3.0, 8.0], [N] * 3, RewardConfig())
    assert [with_bad.rewards[i] for i in (0, 2, 3)] == without.rewards
    assert with_bad.valid == [True, False, True, True]
    assert math.isnan(with_bad.rewards[1])
    assert with_bad.exclude_reasons[1] in ("score is NaN", "score is infinite")
    assert with_bad.metrics == {**without.metrics, "reward/excluded_count": 1.0}


def test_penalties_come_after_normalising_and_keep_their_size():
    for scale in (1.0, 1000.0):
        scores = [scale * x for x in (1.0, 2.0, 3.0)]
        plain = sequence_rewards(scores, [N, N, N], RewardConfig()).rewards
        config = RewardConfig(
            truncated_policy="penalty", score_truncated=True, penalties={"early_end": -2.0, "truncation": -1.0}
        )
        found = sequence_rewards(scores, [N, E, T], config).rewards
        assert [a - b for a, b in zip(found, plain, strict=True)] == pytest.approx([0.0, -2.0, -1.0])


def test_an_invalid_early_end_is_neither_scored_nor_counted():
    config = RewardConfig(early_policy="invalid")
    assert not should_score(E, config) and should_score(N, config)
    found = sequence_rewards([1.0, math.nan, 3.0], [N, E, N], config)
    assert found.rewards[::2] == sequence_rewards([1.0, 3.0], [N, N], config).rewards
    assert found.exclude_reasons == [None, "ended early", None]
    assert not found.valid[1]


MODES = {"batch": 0.0, "none": 2.0, "calibrated": (2.0 - 1.0) / 4.0, "running": (2.0 - 8.0) / (218 / 3) ** 0.5}
"""What the mean score 2 of the batch [1, 3] is worth; `running` has seen [20] before: 1, 3, 20 have mean 8."""


def in_mode(mode, scores, endings, **settings):
    statistics_before = {"calibrated": {"calibration": Calibration(1.0, 4.0)}, "running": {"running": SEEN}}
    config = RewardConfig(**({"normalisation": mode, "clip": 10.0} | settings))
    return sequence_rewards(scores, endings, config, **statistics_before.get(mode, {}))


SEEN = running_stats([{"reward/raw_count": 1.0, "reward/raw_mean": 20.0, "reward/raw_std": 0.0}])


def test_case_A5_a_reward_model_does_not_score_a_cut_text_unless_told_to_and_a_callable_does_unless_told_not_to():
    rule = {"scorer": "callable", "callable": {"path": "m:f"}}
    assert not should_score(T, RewardConfig()) and should_score(T, RewardConfig(score_truncated=True))
    assert should_score(T, RewardConfig(**rule)) and not should_score(T, RewardConfig(**rule, score_truncated=False))


@pytest.mark.parametrize("mode", MODES)
def test_a_cut_text_that_may_not_be_scored_gets_the_mean(mode):
    found = in_mode(mode, [1.0, math.nan, 3.0], [N, T, N])
    assert found.valid[1] and found.exclude_reasons[1] is None
    assert found.raw[1] == 2.0
    assert found.rewards[1] == pytest.approx(MODES[mode], abs=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_of_cut_texts_that_may_not_be_scored_is_valid_and_worth_nothing(mode):
    found = in_mode(mode, [math.nan] * 3, [T] * 3)
    assert found.rewards == [0.0] * 3 and found.valid == [True] * 3
    assert found.metrics["reward/raw_count"] == 0.0 and found.metrics["reward/excluded_count"] == 0.0


def test_clipping_one_side_of_the_scores_does_not_move_the_reward_of_an_unscored_text_from_zero():
    found = in_mode("batch", [0.0] * 9 + [100.0, math.nan], [N] * 10 + [T], clip=1.0)
    assert found.rewards[-1] == pytest.approx(0.0, abs=1e-9)


def test_kl_only_drops_the_reward_of_a_cut_text_and_keeps_its_score_on_record():
    config = RewardConfig(truncated_policy="kl_only", score_truncated=True)
    found = sequence_rewards([1.0, 100.0, 3.0], [N, T, N], config)
    assert found.rewards[1] == 0.0 and found.raw[1] == 100.0 and found.valid[1]
    assert found.rewards[::2] == sequence_rewards([1.0, 3.0], [N, N], config).rewards


@pytest.mark.parametrize("mode", MODES)
def test_raw_scores_are_clipped_before_they_are_normalised_and_kept_as_given(mode):
    scores, endings = [1.0, -90.0, 4.0, 2.0, math.inf, math.nan], [N, N, N, N, N, T]
    found = in_mode(mode, scores, endings, raw_clip=3.0)
    want = in_mode(mode, [1.0, -3.0, 3.0, 2.0, math.inf, math.nan], endings)
    assert found.rewards[:4] + found.rewards[5:] == want.rewards[:4] + want.rewards[5:]
    assert found.valid == [True] * 4 + [False, True]  # An infinite score is lost, not clipped.
    assert found.raw[:4] == scores[:4]
    assert found.metrics == {**want.metrics, "reward/raw_clipped_fraction": 0.5}
    assert running_stats([found.metrics]).mean == pytest.approx(0.75)


def test_case_N04_equal_scores_give_zero_and_say_so():
    found = sequence_rewards([0.7] * 5, [N] * 5, RewardConfig())
    assert found.rewards == [0.0] * 5
    assert found.metrics["reward/zero_std_fraction"] == 1.0


def test_no_valid_score_leaves_only_counts():
    found = sequence_rewards([math.nan], [N], RewardConfig())
    assert found.valid == [False]
    assert "reward/mean" not in found.metrics and found.metrics["reward/raw_count"] == 0.0


def test_calibrated_rewards_use_the_baselines_statistics():
    config = RewardConfig(normalisation="calibrated", clip=9.0)
    found = sequence_rewards([1.0, 5.0], [N, N], config, calibration=Calibration(mean=1.0, std=2.0))
    assert found.rewards == pytest.approx([0.0, 2.0])
    with pytest.raises(ConfigError, match="calibrated"):
        sequence_rewards([1.0], [N], config)


@given(st.lists(scores_of, min_size=1, max_size=4))
def test_running_statistics_from_stored_metrics_are_those_of_all_scores_so_far(batches):
    stored = [sequence_rewards(batch, [N] * len(batch), RewardConfig()).metrics for batch in batches]
    everything = [score for batch in batches for score in batch]
    stats = running_stats(stored)
    assert stats.count == len(everything)
    assert stats.mean == pytest.approx(statistics.fmean(everything), abs=1e-9)
    assert stats.std == pytest.approx(statistics.pstdev(everything), abs=1e-6)
    config = RewardConfig(normalisation="running", clip=99.0)
    found = sequence_rewards(batches[-1], [N] * len(batches[-1]), config, running=running_stats(stored[:-1]))
    want = standardised(everything)[-len(batches[-1]) :]
    if statistics.pstdev(everything) > 1e-3:
        assert found.rewards == pytest.approx(want, abs=1e-4)


def test_an_unsafe_text_costs_its_penalty_whatever_its_score_and_the_case_of_its_letters():
    texts = ResponseTexts(["a", "b", "c"], ["how nice", "Build a BOMB now", "bombastic prose"], [False] * 3)
    config = RewardConfig(unsafe_patterns=(r"\bbomb\b",))
    plain = sequence_rewards([1.0, 2.0, 3.0], [N] * 3, RewardConfig(), texts=texts)
    found = sequence_rewards([1.0, 2.0, 3.0], [N] * 3, config, texts=texts)
    assert found.rewards == pytest.approx([plain.rewards[0], plain.rewards[1] - 10.0, plain.rewards[2]])
    assert found.metrics["reward/unsafe_fraction"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("policy", ["bootstrap", "penalty", "kl_only"])
def test_a_response_that_a_filter_rejected_costs_the_same_penalty_once_however_it_ended(policy):
    texts = ResponseTexts(["a"] * 4, ["fine", "a bomb", "bad", "bad"], [False, True, True, False])
    config = RewardConfig(unsafe_patterns=("bomb",), truncated_policy=policy, score_truncated=True)
    endings = [N, N, T, N]
    plain = sequence_rewards([1.0, 2.0, 3.0, 4.0], endings, config)
    found = sequence_rewards([1.0, 2.0, 3.0, 4.0], endings, config, texts=texts)
    want = [now - 10.0 * bad for now, bad in zip(plain.rewards, [0, 1, 1, 0], strict=True)]
    assert found.rewards == pytest.approx(want)
    assert found.metrics["reward/unsafe_fraction"] == pytest.approx(1 / 2)


def test_an_unsafe_pattern_that_is_no_regular_expression_is_refused():
    with pytest.raises(ValidationError, match=r"'\(' is no regular expression"):
        RewardConfig(unsafe_patterns=("(",))
    with pytest.raises(ValidationError, match="an empty pattern matches every response"):
        RewardConfig(unsafe_patterns=("",))


def test_group_normalisation_compares_responses_to_the_same_prompt_alone():
    texts = ResponseTexts(["p", "q", "p", "q"], [""] * 4, [False] * 4)
    found = sequence_rewards([1.0, 50.0, 3.0, 50.0], [N] * 4, RewardConfig(normalisation="group"), texts=texts)
    assert found.rewards == pytest.approx([-1.0, 0.0, 1.0, 0.0], abs=1e-6)


@pytest.mark.parametrize(("spread", "temperature"), [(0.01, 0.1), (0.5, 0.5), (7.0, 1.0)])
def test_the_adaptive_temperature_is_the_batchs_spread_within_its_limits(spread, temperature):
    config = RewardConfig(normalisation="none", adaptive_temperature=True, clip=100.0)
    found = sequence_rewards([-spread, spread], [N] * 2, config)
    assert found.rewards == pytest.approx([-spread / temperature, spread / temperature])
    assert found.metrics["reward/temperature"] == pytest.approx(temperature)
