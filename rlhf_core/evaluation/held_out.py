"""Reward and KL of a policy's responses to held-out prompts, with the same seeds for every policy (E1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from rlhf_core.config.evaluation import EvaluationConfig
from rlhf_core.config.rollout import RolloutConfig
from rlhf_core.engines.protocols import GenerationRequest, RolloutEngine, Sampling, Scorer
from rlhf_core.evaluation.comparison import bootstrap_interval
from rlhf_core.seeding import response_seed

HELD_OUT_SCHEMA = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("sample_index", pa.int32()),
        ("domain", pa.string()),
        ("prompt", pa.string()),
        ("response", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("response_ids", pa.list_(pa.int32())),
        ("finish_reason", pa.string()),
        ("reward_raw", pa.float64()),
        ("kl_nats", pa.float64()),
    ]
)
"""One response. `kl_nats` is the mean exact KL to the reference over its tokens; NaN for an empty response."""

_ITERATION = 0
"""Seeds do not depend on when the policy is judged, so that two policies differ by their weights alone."""

_SMALL = 1e-8
"""Added to the standard deviation, as in the reward's normalisation (R1), so that equal rewards give no infinity."""


@dataclass(frozen=True)
class Gain:
    """Rise of the mean reward in standard deviations of the baseline, with its interval."""

    value: float
    low: float
    high: float


def sample_held_out(
    engine: RolloutEngine, tokenizer: Any, prompts: pd.DataFrame, rollout: RolloutConfig, evaluation: EvaluationConfig
) -> pd.DataFrame:
    """Sample `held_out_rollouts` responses, in turn over the prompts and in more than one sample where those run out.

    Args:
        engine: samples from the judged policy.
        tokenizer: turns tokens into text.
        prompts: held-out prompts, `PROMPT_SCHEMA`.
        rollout: temperature, limits and stop strings, as in training.
        evaluation: number of responses and their seed.
    """
    rows = list(islice(_places(prompts), evaluation.held_out_rollouts))
    requests = [
        GenerationRequest(
            tuple(row["prompt_ids"]), response_seed(evaluation.seed, row["prompt_id"], _ITERATION, row["sample_index"])
        )
        for row in rows
    ]
    sampling = Sampling(rollout.max_new_tokens, rollout.temperature, rollout.stop_strings)
    for row, generation in zip(rows, engine.generate(requests, sampling), strict=True):
        row["response_ids"] = list(generation.response_ids)
        row["response"] = tokenizer.decode(row["response_ids"], skip_special_tokens=True)
        row["finish_reason"] = generation.finish_reason
    return pd.DataFrame(rows)


def _places(prompts: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Endless rows: every prompt with sample 0, then every prompt with sample 1, …"""
    columns = ["prompt_id", "domain", "prompt", "prompt_ids"]
    records = _records(prompts, columns)
    sample_index = 0
    while records:
        for record in records:
            yield {**record, "sample_index": sample_index}
        sample_index += 1


def _records(frame: pd.DataFrame, columns: list[str]) -> list[dict[str, Any]]:
    table: Any = frame[columns]
    return table.to_dict("records")


def scored(frame: pd.DataFrame, scorer: Scorer, *, scores_truncated: bool) -> pd.DataFrame:
    """The responses with their raw reward; NaN where the scorer gives none, or may not judge a cut text (A5)."""
    columns = ["prompt", "response", "prompt_ids", "response_ids", "domain"]
    is_asked: NDArray[np.bool_] = (frame["finish_reason"] != "length").to_numpy() | scores_truncated
    rewards = np.full(len(frame), np.nan)
    if is_asked.any():
        # A callable of the user's may give None, which no type forbids it.
        scores = pd.Series(scorer.score(_records(frame.loc[is_asked], columns)), dtype=object)
        numbers: Any = pd.to_numeric(scores, errors="coerce")
        rewards[is_asked] = numbers.to_numpy(np.float64)
    return frame.assign(reward_raw=rewards)


def reward_statistics(rewards: NDArray[np.float64], limit: float | None = None) -> tuple[float, float]:
    """Mean and population standard deviation of the finite rewards, clipped to ±limit; NaN where there is none."""
    finite = rewards[np.isfinite(rewards)]
    finite = finite if limit is None else finite.clip(-limit, limit)
    return (float(finite.mean()), float(finite.std())) if len(finite) else (float("nan"), float("nan"))


def paired_gain(baseline: pd.DataFrame, candidate: pd.DataFrame, *, confidence: float, seed: int) -> Gain:
    """`(mean of the candidate - mean of the baseline) / std of the baseline`, by a bootstrap that draws prompts.

    A place whose reward is not finite on either side is left out on both; NaN where nothing is left.

    Args:
        baseline: `HELD_OUT_SCHEMA` of the SFT model.
        candidate: the same prompts and samples of the judged policy.
        confidence: of the interval.
        seed: of the resampling.
    """
    keys = ["prompt_id", "sample_index"]
    columns = [*keys, "reward_raw"]
    both: Any = baseline[columns].merge(candidate[columns], on=keys, suffixes=("_before", "_after"))
    both = both[np.isfinite(both["reward_raw_before"]) & np.isfinite(both["reward_raw_after"])]
    if both.empty:
        return Gain(float("nan"), float("nan"), float("nan"))
    before = both["reward_raw_before"].to_numpy(np.float64)
    rises = both["reward_raw_after"].to_numpy(np.float64) - before
    spread = float(before.std())
    by_prompt: Any = both.assign(rise=rises).groupby("prompt_id")["rise"]
    totals, counts = by_prompt.sum().to_numpy(np.float64), by_prompt.count().to_numpy(np.float64)
    low, high = bootstrap_interval(
        (totals, counts), lambda drawn: drawn[0].sum(axis=-1) / drawn[1].sum(axis=-1), confidence=confidence, seed=seed
    )
    return Gain(*(value / (spread + _SMALL) for value in (float(rises.mean()), low, high)))
