"""The reward stage: rollouts in, scored rollouts out (R*)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pandas as pd

from rlhf_core.data.events import record_event
from rlhf_core.data.records import SCORED_SCHEMA
from rlhf_core.data.refs import StageRef
from rlhf_core.data.store import (
    MANIFEST,
    StageKey,
    finish_stage,
    finished_stage,
    load_stage,
    read_json,
    read_table,
    stage_folder,
    write_table,
)
from rlhf_core.numerics.running_stats import RunningStats
from rlhf_core.rewards.normalise import Calibration
from rlhf_core.rewards.scorers import scorer_identity
from rlhf_core.rewards.sequence_rewards import ResponseTexts, running_stats, sequence_rewards, should_score

if TYPE_CHECKING:
    from rlhf_core.runtime import Runtime

ROLLOUTS = "rollouts.parquet"
SCORED = "scored.parquet"
CALIBRATION = "reward_calibration.json"
_REPORTED_PROMPTS = 20


def run_stage(runtime: Runtime, rollouts: StageRef, iteration: int) -> StageRef:
    """Score the rollouts and turn the scores into rewards; `scored.parquet`, metrics `reward/…`.

    Raises:
        ConfigError: normalisation `calibrated` without a calibration; a scorer that cannot be loaded.
        DataError: the scorer did not return one number per response.
    """
    config = runtime.config.reward
    final = runtime.folder.iteration(iteration) / "scored"
    calibration = _calibration(runtime)
    running = _running(runtime, iteration)
    key = StageKey(
        stage="scored",
        inputs={"rollouts": rollouts.sha256, "scorer": scorer_identity(runtime.config, runtime.folder)},
        settings={
            "reward": config.model_dump(mode="json", exclude={"batch_size"}),
            "calibration": None if calibration is None else [calibration.mean, calibration.std],
            "running": None if running is None else running.state_dict(),
        },
    )
    if stored := finished_stage(final, key):
        return stored
    frame = read_table(rollouts.path / ROLLOUTS)
    endings = [str(ending) for ending in frame["ending"]]
    found = sequence_rewards(
        _scores(runtime, frame, iteration),
        endings,
        config,
        texts=ResponseTexts(
            frame["prompt_id"].tolist(),
            frame["response"].tolist(),
            [isinstance(reason, str) for reason in frame["rejected_by"]],
        ),
        calibration=calibration,
        running=running,
    )
    scored = frame.assign(
        reward_raw=found.raw,
        reward=found.rewards,
        valid=found.valid,
        exclude_reason=pd.Series(found.exclude_reasons, dtype=object),
    )
    with stage_folder(final) as partial:
        write_table(partial / SCORED, scored, SCORED_SCHEMA)
        finish_stage(partial, key, rows=len(scored), metrics=found.metrics)
    _report_excluded(runtime, scored, iteration)
    return load_stage(final)


def _scores(runtime: Runtime, frame: pd.DataFrame, iteration: int) -> list[float]:
    """Raw scores in the rows' order; NaN where the scorer is not asked."""
    config = runtime.config.reward
    rows = frame.to_dict("records")
    asked = [i for i, row in enumerate(rows) if should_score(row["ending"], config)]
    asked.sort(key=lambda i: (-len(rows[i]["prompt_ids"]) - len(rows[i]["response_ids"]), i))
    scores = [float("nan")] * len(rows)
    scorer = runtime.scorer()
    with runtime.progress(f"iteration {iteration}: scores", len(asked)) as bar:
        for start in range(0, len(asked), config.batch_size):
            batch = asked[start : start + config.batch_size]
            for i, score in zip(batch, scorer.score([rows[i] for i in batch]), strict=True):
                scores[i] = score
            bar.advance(len(batch))
    return scores


def _calibration(runtime: Runtime) -> Calibration | None:
    """Mean and std of the baseline's raw scores, where they are wanted and there."""
    file = runtime.folder.baseline / CALIBRATION
    if runtime.config.reward.normalisation != "calibrated" or not file.exists():
        return None
    facts = read_json(file)
    return Calibration(mean=float(facts["mean"]), std=float(facts["std"]))


def _running(runtime: Runtime, iteration: int) -> RunningStats | None:
    """Statistics of all iterations before this one, from what they stored."""
    if runtime.config.reward.normalisation != "running":
        return None
    manifests = [runtime.folder.iteration(number) / "scored" / MANIFEST for number in range(1, iteration)]
    return running_stats([read_json(path)["metrics"] for path in manifests if path.exists()])


def _report_excluded(runtime: Runtime, scored: pd.DataFrame, iteration: int) -> None:
    excluded = scored[~scored["valid"].astype(bool)]
    if excluded.empty:
        return
    reasons = dict(Counter(str(reason) for reason in excluded["exclude_reason"]))
    prompts = [str(name) for name in excluded["prompt_id"]][:_REPORTED_PROMPTS]
    record_event(
        runtime.folder,
        "excluded_reward",
        f"{len(excluded)} of {len(scored)} responses are excluded: {reasons}; prompts {', '.join(prompts)}.",
        iteration=iteration,
        count=len(excluded),
        prompt_ids=prompts,
    )
