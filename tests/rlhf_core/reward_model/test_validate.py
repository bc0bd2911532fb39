import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from rlhf_core.config.reward import RewardModelGateConfig
from rlhf_core.errors import DataError
from rlhf_core.reward_model.validate import (
    correlation_interval,
    gate_failures,
    validate_scores,
    validation_table,
    wilson_interval,
)


def frame(rows: list[tuple[float, float, int, int, str]]) -> pd.DataFrame:
    """Rows of chosen score, rejected score, chosen length, rejected length, domain."""
    return pd.DataFrame(
        {
            "domain": [row[4] for row in rows],
            "chosen": ["x" * row[2] for row in rows],
            "rejected": ["x" * row[3] for row in rows],
            "chosen_score": [row[0] for row in rows],
            "rejected_score": [row[1] for row in rows],
        }
    )


ROWS = [(2.0, 1.0, 5, 9, "a"), (0.0, 1.0, 7, 2, "a"), (1.0, 1.0, 3, 4, "b"), (3.0, 0.0, 9, 1, "b")]


@given(st.integers(1, 400), st.floats(0, 1), st.sampled_from([0.9, 0.95]))
def test_the_interval_is_wilsons(count, share, confidence):
    wins = round(share * count)
    want = binomtest(wins, count).proportion_ci(confidence, method="wilson")
    assert wilson_interval(wins / count, count, confidence) == pytest.approx((want.low, want.high), abs=1e-9)


def test_shares_worked_out_by_hand():
    found = validate_scores(frame(ROWS), None, 0.95)
    assert found.accuracy.value == 2.5 / 4
    assert {name: share.value for name, share in found.by_domain.items()} == {"a": 0.5, "b": 0.75}
    # The shorter is preferred in pairs 0 (right) and 2 (tied); the longer is chosen in pairs 1 and 3.
    assert (found.shorter_preferred_accuracy.value, found.shorter_preferred_accuracy.pairs) == (0.75, 2)
    assert found.longer_wins_accuracy.value == 0.5
    assert found.score_mean == pytest.approx(9 / 8)
    assert found.beats_word_baseline is None


def test_the_word_baseline_is_judged_on_the_same_pairs():
    found = validate_scores(frame(ROWS), np.array([1.0, -1.0, -1.0, -1.0]), 0.95)
    assert found.word_baseline_accuracy.value == 0.25
    assert found.beats_word_baseline


def test_scores_that_are_lengths_correlate_fully_and_constant_scores_not_at_all():
    lengths = [(float(c), float(r), c, r, "a") for c, r in ((5, 2), (9, 1), (4, 8))]
    assert validate_scores(frame(lengths), None, 0.95).length_correlation == pytest.approx(1.0)
    flat = [(0.0, 0.0, c, r, "a") for _, _, c, r, _ in lengths]
    found = validate_scores(frame(flat), None, 0.95)
    assert (found.length_correlation, found.accuracy.value) == (0.0, 0.5)


def test_the_correlation_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        x = rng.normal(size=120)
        y = 0.6 * x + 0.8 * rng.normal(size=120)
        ranks = [np.argsort(np.argsort(v)) for v in (x, y)]
        low, high = correlation_interval(float(np.corrcoef(ranks)[0, 1]), 120, 0.95)
        covered += low <= 6 / np.pi * np.arcsin(0.6 / 2) <= high
    assert 0.92 <= covered / 400 <= 0.98


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_are_no_numbers_and_no_pairs_are_refused(bad):
    with pytest.raises(DataError, match="1 with a score that is NaN"):
        validate_scores(frame([*ROWS, (bad, 0.0, 1, 2, "a")]), None, 0.95)
    with pytest.raises(DataError, match="0 held-out pairs"):
        validate_scores(frame([]), None, 0.95)


def test_the_gate_names_everything_that_failed():
    bad = [(float(c), float(r), c, r, "a") for c, r in ((2, 5), (1, 9), (4, 8), (7, 3))]
    reasons = gate_failures(validate_scores(frame(bad), None, 0.95), RewardModelGateConfig(max_length_correlation=0.5))
    assert len(reasons) == 3
    assert "min_accuracy" in reasons[0] and "chance" in reasons[1] and "max_length_correlation" in reasons[2]


def test_a_good_model_passes_and_the_table_reads():
    rng = np.random.default_rng(0)
    good = [(1.0, 0.0, int(a), int(b), "a") for a, b in rng.integers(1, 50, (40, 2))]
    found = validate_scores(frame(good), np.ones(40), 0.95)
    assert gate_failures(found, RewardModelGateConfig()) == ()
    table = validation_table(found)
    assert "accuracy" in table and "domain a" in table and "TF-IDF and length" in table and "1.000" in table
