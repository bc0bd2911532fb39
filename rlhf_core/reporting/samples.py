"""Rollouts as the report shows them: reward distributions, the best and worst texts, prompts that stand out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from safetensors.torch import load_file

from rlhf_core.data.store import MANIFEST, RunFolder, read_table
from rlhf_core.errors import DataError
from rlhf_core.numerics.kl import kl_k3

ROW_KEY = ["prompt_id", "sample_index"]
SHOWN_COLUMNS = ("iteration", *ROW_KEY, "domain", "prompt", "response", "ending", "reward_raw", "reward", "valid")
OUTLIER_Z = 3.0


@dataclass(frozen=True)
class RewardHistogram:
    """Shares of raw rewards: `share[bin, iteration]`, each column sums to 1 over the finite rewards."""

    iterations: list[int]
    edges: np.ndarray
    share: np.ndarray
    median: list[float]


def scored_iterations(folder: RunFolder) -> dict[int, Path]:
    """Finished `scored.parquet` files by iteration."""
    files = sorted((folder.path / "iterations").glob("[0-9]*/scored/scored.parquet"))
    return {int(path.parts[-3]): path for path in files if (path.parent / MANIFEST).exists()}


def reward_histogram(folder: RunFolder) -> RewardHistogram | None:
    """Raw rewards of all iterations on common bins; None before the first finite reward.

    Larger iterations get finer bins. The outermost half percent on either side is gathered in the end bins, so that
    one wild score does not flatten the picture.
    """
    rewards = {number: _finite_rewards(path) for number, path in scored_iterations(folder).items()}
    rewards = {number: values for number, values in rewards.items() if len(values)}
    if not rewards:
        return None
    everything = np.concatenate(list(rewards.values()))
    low, high = np.quantile(everything, [0.005, 0.995])
    if low == high:
        low, high = low - 0.5, high + 0.5
    bins = int(np.clip(2 * np.sqrt(len(everything) / len(rewards)), 8, 40))
    edges = np.linspace(low, high, bins + 1)
    columns = [np.histogram(values.clip(low, high), edges)[0] / len(values) for values in rewards.values()]
    medians = [float(np.median(values)) for values in rewards.values()]
    return RewardHistogram(list(rewards), edges, np.stack(columns, axis=1), medians)


def recent_rollouts(folder: RunFolder, iterations: int = 5) -> pd.DataFrame | None:
    """The scored rollouts of the last iterations, with finite raw rewards only; None before the first."""
    files = list(scored_iterations(folder).items())[-iterations:]
    if not files:
        return None
    frames = [_shown(path).merge(_kl_by_rollout(folder, n), how="left", on=ROW_KEY) for n, path in files]
    rows = pd.concat(frames, ignore_index=True)
    return rows.loc[np.isfinite(_floats(rows["reward_raw"]))].reset_index(drop=True)


def extremes(rollouts: pd.DataFrame, count: int = 5) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The `count` best and worst rollouts by raw reward; best first, worst first, no row in both."""
    ordered = rollouts.sort_values(
        ["reward_raw", "iteration", "prompt_id"], ascending=[False, True, True], kind="stable"
    )
    count = min(count, len(ordered) // 2) or len(ordered)
    best = ordered.head(count)
    return best, ordered.drop(best.index).tail(count).iloc[::-1]


def prompt_outliers(rollouts: pd.DataFrame, threshold: float = OUTLIER_Z) -> pd.DataFrame:
    """Prompts whose mean reward or KL stands out among all prompts: |z| above `threshold`.

    Columns: prompt_id, domain, prompt, rollouts, reward_raw, reward_z; kl_nats and kl_z where rollouts carry `kl_nats`.
    """
    measures = [name for name in ("reward_raw", "kl_nats") if name in rollouts]
    groups = cast(Any, rollouts.groupby("prompt_id", sort=True))
    table = groups[measures].mean().join(groups[["domain", "prompt"]].first())
    table["rollouts"] = groups.size()
    for measure in measures:
        table[measure.split("_")[0] + "_z"] = _z_scores(table[measure])
    scores = table[[name for name in ("reward_z", "kl_z") if name in table]]
    worst = scores.abs().max(axis=1)
    outside = table.assign(worst=worst)[worst > threshold]
    return outside.sort_values("worst", ascending=False).drop(columns="worst").reset_index()


def _z_scores(column: Any) -> Any:
    values = _floats(column)
    spread = float(values.std())
    return (values - values.mean()) / spread if spread > 0 else values * 0.0


def _finite_rewards(path: Path) -> np.ndarray:
    values = _floats(_read_columns(path, ["reward_raw"])["reward_raw"])
    return values[np.isfinite(values)]


def _floats(column: Any) -> np.ndarray:
    return column.to_numpy(dtype=float, na_value=np.nan)


def _kl_by_rollout(folder: RunFolder, iteration: int) -> pd.DataFrame:
    """KL (k3) to the reference of each rollout that was learned from, nats per token; empty without experience."""
    experience = folder.iteration(iteration) / "experience"
    if not (experience / MANIFEST).exists():
        return pd.DataFrame({name: [] for name in (*ROW_KEY, "kl_nats")}).astype({"prompt_id": object})
    tensors = load_file(experience / "experience.safetensors")
    mask = tensors["response_mask"].bool()
    kl = kl_k3((tensors["old_logprobs"] - tensors["ref_logprobs"]).masked_fill(~mask, 0.0))
    rows = read_table(folder.iteration(iteration) / "validated" / "validated.parquet")
    rows = rows.loc[rows["valid"].astype(bool), ROW_KEY]
    by_row = kl.masked_fill(~mask, 0.0).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
    return rows.assign(kl_nats=by_row.tolist())


def _shown(path: Path) -> pd.DataFrame:
    _check_columns(path, SHOWN_COLUMNS)
    return read_table(path).loc[:, list(SHOWN_COLUMNS)]


def _read_columns(path: Path, columns: list[str]) -> pd.DataFrame:
    _check_columns(path, columns)
    return pq.read_table(path, columns=columns).to_pandas()


def _check_columns(path: Path, columns: list[str] | tuple[str, ...]) -> None:
    present = pq.read_schema(path).names
    missing = [name for name in columns if name not in present]
    if missing:
        raise DataError(f"{path} lacks the columns {missing}; it has {present}. Remove its folder and resume the run.")
