"""Best-of-n sampling (G6): for a cold start by SFT on the best samples (P10), and as an evaluation of a policy."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from rlhf_core.data.prepared import held_out_prompts, prompt_pool
from rlhf_core.data.records import ROLLOUT_SCHEMA
from rlhf_core.data.refs import CheckpointRef
from rlhf_core.data.store import stage_folder, write_json, write_table
from rlhf_core.errors import CannotLearn, ConfigError, NumericsError
from rlhf_core.rollout.rejecter import build_rejecter
from rlhf_core.rollout.rejection import Rejecter, sample_with_rejection
from rlhf_core.rollout.sampling import Place, SampleOrigin, Sampler
from rlhf_core.seeding import derive_seed

if TYPE_CHECKING:
    from rlhf_core.engines.protocols import Scorer
    from rlhf_core.runtime import Runtime

SAMPLES, KEPT, CURVE = "samples.parquet", "kept.jsonl", "curve.json"


@dataclass(frozen=True)
class BestOfN:
    """`samples` have `reward_raw`; `kept` is the best of each prompt; `curve[k - 1]` the mean best of k."""

    samples: pd.DataFrame
    kept: pd.DataFrame
    curve: list[float]


def expected_best(scores: Sequence[float], k: int) -> float:
    """Return the unbiased estimate of the best score of k samples, from n ≥ k of them.

    The mean over all subsets of size k of their maximum: Σ_i C(i - 1, k - 1) / C(n, k) · s_(i), with s sorted rising;
    the same U-statistic as that of pass@k (Chen et al. 2021, arXiv:2107.03374).

    Raises:
        NumericsError: k is not between 1 and n, or a score is not finite.
    """
    n = len(scores)
    if not 1 <= k <= n or not all(math.isfinite(score) for score in scores):
        raise NumericsError(
            f"the best of k={k} cannot be told from {n} scores {list(scores)[:8]}: need finite ones, k ≤ n."
        )
    weights = [math.comb(i, k - 1) / math.comb(n, k) for i in range(n)]
    return math.fsum(weight * score for weight, score in zip(weights, sorted(scores), strict=True))


def best_of_n(sampler: Sampler, prompts: pd.DataFrame, rejecter: Rejecter, scorer: Scorer, n: int) -> BestOfN:
    """Sample n responses a prompt and keep the best that passes the filters and has a finite score.

    A prompt of which nothing passes has no row in `kept`. The curve is over prompts with n scored samples each, empty
    where there is none; of responses to be penalised none is kept, and none counts.

    Raises:
        CannotLearn: no response of any prompt can be kept.
        NumericsError: the policy's logits are NaN or infinite.
    """
    places = [Place(dict(row), sample) for row in prompts.to_dict("records") for sample in range(n)]
    rows = sample_with_rejection(sampler, places, rejecter).kept
    rows = rows.loc[[not isinstance(reason, str) for reason in rows["rejected_by"]]].reset_index(drop=True)
    scores = scorer.score(rows.to_dict("records")) if len(rows) else []
    samples = rows.assign(reward_raw=[float(score) for score in scores])
    usable = samples.loc[[math.isfinite(score) for score in scores]]
    if usable.empty:
        raise CannotLearn(
            f"best of {n}: none of {len(places)} responses passed the filters with a finite score. Look at what the "
            "policy writes, loosen rollout.rejection, or look at the scorer."
        )
    kept = usable.loc[usable.groupby("prompt_id", sort=False)["reward_raw"].idxmax().tolist()]
    whole = [list(group) for _, group in usable.groupby("prompt_id", sort=False)["reward_raw"] if len(group) == n]
    curve = (
        [math.fsum(expected_best(group, k) for group in whole) / len(whole) for k in range(1, n + 1)] if whole else []
    )
    return BestOfN(samples, kept.reset_index(drop=True), curve)


def run_best_of_n(runtime: Runtime, policy: CheckpointRef, out: Path, *, n: int, prompts: int, pool: str) -> BestOfN:
    """Best of n on the run's own prompts; writes `samples.parquet`, `kept.jsonl` for SFT, and `curve.json` into `out`.

    Args:
        runtime: of the run.
        policy: samples.
        out: a folder that is made or replaced.
        n: responses a prompt.
        prompts: how many, from the first.
        pool: `held_out` to judge the policy, `train` to make data for a cold start.

    Raises:
        ConfigError: n or prompts is below 1.
        CannotLearn: nothing can be kept.
    """
    if n < 1 or prompts < 1:
        raise ConfigError(f"best of n={n} on {prompts} prompts: both must be 1 or more.")
    config = runtime.config
    frame = (held_out_prompts if pool == "held_out" else prompt_pool)(runtime.folder).head(prompts)
    origin = SampleOrigin(derive_seed(config.seed, "best_of_n"), iteration=0, policy_step=policy.step)
    with runtime.progress(f"best of {n}: responses", len(frame) * n) as bar:
        sampler = Sampler(runtime.rollout_engine(policy), runtime.tokenizer, config.rollout, origin, bar.advance)
        found = best_of_n(sampler, frame, build_rejecter(runtime), runtime.scorer(), n)
    with stage_folder(out) as partial:
        write_table(partial / SAMPLES, found.samples, ROLLOUT_SCHEMA)
        lines = [_kept_line(row, n) for row in found.kept.to_dict("records")]
        (partial / KEPT).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        write_json(partial / CURVE, {"policy_step": policy.step, "expected_best": found.curve})
    return found


def _kept_line(row: dict[str, object], n: int) -> str:
    kept = {name: row[name] for name in ("prompt", "response", "domain", "reward_raw")}
    return json.dumps({**kept, "n": n}, ensure_ascii=False)
