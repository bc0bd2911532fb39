"""Paired comparison of the same benchmark items before and after (C2), and intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import binomtest

from rlhf_core.data.refs import BenchmarkScore
from rlhf_core.errors import DataError

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

RESAMPLES = 10_000
_CHUNK = 500
_ITEM_KEYS = ["benchmark", "task", "item_id"]


@dataclass(frozen=True)
class PairedComparison:
    """How much worse the candidate is; a negative drop is a gain."""

    drop: float
    drop_low: float
    drop_high: float
    p_value: float
    margin_drop: float
    margin_drop_low: float
    margin_drop_high: float


def wilson_interval(successes: int, items: int, confidence: float) -> tuple[float, float]:
    """Wilson's score interval of a share (Wilson 1927); (0, 1) where there is no item."""
    if items == 0:
        return 0.0, 1.0
    interval = binomtest(successes, items).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def compare_items(
    correct: tuple[Bools, Bools], margin: tuple[Floats, Floats], *, confidence: float, seed: int
) -> PairedComparison:
    """Compare two evaluations of the same items, item by item.

    Intervals are percentiles of a paired bootstrap over items; the p-value is McNemar's exact test.

    Args:
        correct: `(baseline, candidate)`, whether each item was answered rightly.
        margin: `(baseline, candidate)`, score of the right choice minus that of the best wrong one.
        confidence: of both intervals.
        seed: of the resampling.
    """
    worse = correct[0].astype(np.float64) - correct[1].astype(np.float64)
    margin_worse = margin[0] - margin[1]
    low, high = bootstrap_interval((worse,), mean, confidence=confidence, seed=seed)
    margin_low, margin_high = bootstrap_interval((margin_worse,), mean, confidence=confidence, seed=seed)
    return PairedComparison(
        drop=float(worse.mean()),
        drop_low=low,
        drop_high=high,
        p_value=mcnemar_p_value(correct[0], correct[1]),
        margin_drop=float(margin_worse.mean()),
        margin_drop_low=margin_low,
        margin_drop_high=margin_high,
    )


def mcnemar_p_value(baseline: Bools, candidate: Bools) -> float:
    """Exact two-sided p-value of McNemar's test: are losses and gains equally likely? 1 where nothing changed."""
    lost = int((baseline & ~candidate).sum())
    gained = int((~baseline & candidate).sum())
    return 1.0 if lost + gained == 0 else float(binomtest(lost, lost + gained).pvalue)


def mean(columns: tuple[Floats, ...]) -> Floats:
    """Mean over the last axis of the only column."""
    return columns[0].mean(axis=-1)


def bootstrap_interval(
    columns: tuple[Floats, ...],
    statistic: Callable[[tuple[Floats, ...]], Floats],
    *,
    confidence: float,
    seed: int,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """Percentile interval of a statistic when the rows of `columns` are drawn anew, all columns together.

    Source: Efron and Tibshirani 1993, chapter 13.

    Args:
        columns: arrays of one length; a row is one unit of sampling.
        statistic: takes the columns as `[resamples, rows]` arrays and returns `[resamples]` values.
    """
    rows = len(columns[0])
    rng = np.random.default_rng(seed)
    values = np.empty(resamples)
    for start in range(0, resamples, _CHUNK):
        drawn = rng.integers(rows, size=(min(_CHUNK, resamples - start), rows))
        values[start : start + len(drawn)] = statistic(tuple(column[drawn] for column in columns))
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(values, [tail, 1.0 - tail])
    return float(low), float(high)


def benchmark_scores(
    baseline: pd.DataFrame, candidate: pd.DataFrame, confidence: float, seed: int
) -> tuple[BenchmarkScore, ...]:
    """Score each benchmark and compare it with the baseline's answers to the same items.

    Args:
        baseline: columns benchmark, task, item_id, correct, margin.
        candidate: the same items; their order does not matter.
        confidence: of all intervals.
        seed: of the bootstrap.

    Raises:
        DataError: the two sides hold different items.
    """
    both: Any = baseline.merge(candidate, on=_ITEM_KEYS, how="outer", suffixes=("_before", "_after"), indicator=True)
    odd = both[both["_merge"] != "both"]
    if len(odd) or len(both) != len(baseline):
        raise DataError(
            f"the gate answered other benchmark items than the baseline ({len(odd)} stand on one side only, e.g. "
            f"{odd[_ITEM_KEYS].head(1).values.tolist()}). The items have changed since; start a new run."
        )
    return tuple(_score(str(name), part, confidence, seed) for name, part in both.groupby("benchmark", sort=True))


def _score(name: str, part: pd.DataFrame, confidence: float, seed: int) -> BenchmarkScore:
    correct = (part["correct_before"].to_numpy(np.bool_), part["correct_after"].to_numpy(np.bool_))
    margin = (part["margin_before"].to_numpy(np.float64), part["margin_after"].to_numpy(np.float64))
    paired = compare_items(correct, margin, confidence=confidence, seed=seed)
    low, high = wilson_interval(int(correct[1].sum()), len(part), confidence)
    return BenchmarkScore(
        name=name,
        accuracy=float(correct[1].mean()),
        low=low,
        high=high,
        items=len(part),
        drop=paired.drop,
        drop_low=paired.drop_low,
        drop_high=paired.drop_high,
        margin_drop=paired.margin_drop,
        margin_drop_low=paired.margin_drop_low,
        margin_drop_high=paired.margin_drop_high,
        p_value=paired.p_value,
    )


def blind_benchmarks(items: pd.DataFrame, confidence: float) -> dict[str, tuple[float, float]]:
    """Return `(accuracy, chance)` of each benchmark whose interval does not lie above guessing.

    Such a benchmark cannot see a loss: who guesses already cannot fall. Chance is one over an item's options, averaged.

    Args:
        items: of one evaluation, with `benchmark`, `correct` and `loglikelihoods`.
        confidence: of the interval.
    """
    blind: dict[str, tuple[float, float]] = {}
    for name, part in items.groupby("benchmark", sort=True):
        chance = float(np.mean([1.0 / len(options) for options in part["loglikelihoods"]]))
        right = sum(map(bool, part["correct"].tolist()))
        if wilson_interval(right, len(part), confidence)[0] <= chance:
            blind[str(name)] = (right / len(part), chance)
    return blind
