"""Does a reward model deserve its place (W2): accuracy and length bias, against what words and length alone tell."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import norm, spearmanr

from rlhf_core.config.reward import RewardModelGateConfig
from rlhf_core.data.reward_model_record import RewardModelValidation, Share
from rlhf_core.errors import DataError


def validate_scores(
    pairs: pd.DataFrame, baseline_margins: NDArray[np.float64] | None, confidence: float
) -> RewardModelValidation:
    """Judge scores of held-out pairs.

    Args:
        pairs: columns `domain`, `chosen`, `rejected`, `chosen_score`, `rejected_score`.
        baseline_margins: chosen - rejected of the words-and-length baseline on the same pairs.
        confidence: of all intervals.

    Raises:
        DataError: there are no pairs, or a score is NaN or infinite.
    """
    scores = pairs[["chosen_score", "rejected_score"]].to_numpy(dtype=np.float64)
    if not len(scores) or not np.isfinite(scores).all():
        bad = int((~np.isfinite(scores)).any(axis=1).sum())
        raise DataError(
            f"the reward model cannot be judged: {len(scores)} held-out pairs, {bad} with a score that is NaN or "
            "infinite. Give data.preferences.held_out, or look at the model's weights."
        )
    margins = scores[:, 0] - scores[:, 1]
    lengths = np.stack([pairs["chosen"].str.len(), pairs["rejected"].str.len()], axis=1).astype(np.float64)
    longer = lengths[:, 0] - lengths[:, 1]
    correlation = _rank_correlation(scores.ravel(), lengths.ravel())
    low, high = correlation_interval(correlation, scores.size, confidence)
    domains = pairs["domain"].to_numpy()
    return RewardModelValidation(
        accuracy=accuracy_share(margins, confidence),
        by_domain={str(name): accuracy_share(margins[domains == name], confidence) for name in sorted(set(domains))},
        length_correlation=correlation,
        length_correlation_low=low,
        length_correlation_high=high,
        shorter_preferred_accuracy=accuracy_share(margins[longer < 0], confidence),
        longer_wins_accuracy=accuracy_share(longer, confidence),
        word_baseline_accuracy=None if baseline_margins is None else accuracy_share(baseline_margins, confidence),
        score_mean=float(scores.mean()),
        score_std=float(scores.std()),
        confidence=confidence,
    )


def accuracy_share(margins: NDArray[np.float64], confidence: float) -> Share:
    """Share of margins above 0, a tie counted half, with its interval; 0.5 in [0, 1] where there is none."""
    count = len(margins)
    if not count:
        return Share(value=0.5, low=0.0, high=1.0, pairs=0)
    value = float(((margins > 0) + 0.5 * (margins == 0)).mean())
    low, high = wilson_interval(value, count, confidence)
    return Share(value=value, low=low, high=high, pairs=count)


def wilson_interval(share: float, count: int, confidence: float) -> tuple[float, float]:
    """Wilson's score interval of a share of `count` trials; the share may hold halves. Source: Wilson 1927."""
    z = float(norm.ppf(0.5 + confidence / 2))
    centre = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def correlation_interval(correlation: float, count: int, confidence: float) -> tuple[float, float]:
    """Interval of a rank correlation, by Fisher's transformation with the variance of Bonett & Wright 2000."""
    if count < 4 or abs(correlation) >= 1:
        return (-1.0, 1.0) if count < 4 else (correlation, correlation)
    spread = float(norm.ppf(0.5 + confidence / 2)) * math.sqrt((1 + correlation**2 / 2) / (count - 3))
    centre = math.atanh(correlation)
    return math.tanh(centre - spread), math.tanh(centre + spread)


def gate_failures(validation: RewardModelValidation, gate: RewardModelGateConfig) -> tuple[str, ...]:
    """Why the model may not be used; empty when it may."""
    accuracy = validation.accuracy
    reasons: list[str] = []
    if accuracy.value < gate.min_accuracy:
        reasons.append(f"accuracy {accuracy.value:.3f} is below reward_model.gate.min_accuracy={gate.min_accuracy}")
    if accuracy.low <= 0.5:
        reasons.append(f"accuracy is not surely better than chance: its interval starts at {accuracy.low:.3f}")
    if abs(validation.length_correlation) > gate.max_length_correlation:
        reasons.append(
            f"|rank correlation of score and length| {abs(validation.length_correlation):.3f} exceeds "
            f"reward_model.gate.max_length_correlation={gate.max_length_correlation}"
        )
    return tuple(reasons)


def validation_table(found: RewardModelValidation) -> str:
    """The validation as lines of text."""
    rows = [("accuracy", found.accuracy)]
    rows += [(f"  domain {name}", share) for name, share in found.by_domain.items()]
    rows += [("where the shorter is preferred", found.shorter_preferred_accuracy)]
    rows += [("'the longer wins' instead", found.longer_wins_accuracy)]
    if found.word_baseline_accuracy is not None:
        rows += [("TF-IDF and length instead", found.word_baseline_accuracy)]
    lines = [f"{'on held-out pairs':<34}{'share':>7}  {found.confidence:.0%} interval   pairs"]
    lines += [f"{name:<34}{s.value:>7.3f}  [{s.low:.3f}, {s.high:.3f}]{s.pairs:>8}" for name, s in rows]
    lines.append(
        f"{'rank correlation with length':<34}{found.length_correlation:>7.3f}  "
        f"[{found.length_correlation_low:.3f}, {found.length_correlation_high:.3f}]"
    )
    lines.append(f"{'score mean and std':<34}{found.score_mean:>7.3f}  {found.score_std:.3f}")
    return "\n".join(lines)


def _rank_correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Spearman's correlation; 0 where one side does not vary."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(cast(Any, spearmanr(first, second)).statistic)
