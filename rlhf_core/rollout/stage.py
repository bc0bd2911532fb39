"""The rollout stage: prompts in, sampled responses out (G*)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pandas as pd

from rlhf_core.config.rollout import RolloutConfig
from rlhf_core.config.run import RunConfig
from rlhf_core.control.max_new_tokens import max_new_tokens_controller
from rlhf_core.data.events import record_event
from rlhf_core.data.filter_timing import record_filter_timing
from rlhf_core.data.prepared import POOL, prompt_pool
from rlhf_core.data.prompt_pool import draw_prompts
from rlhf_core.data.records import REPLACED_SCHEMA, ROLLOUT_SCHEMA
from rlhf_core.data.refs import CheckpointRef, ControlState, StageRef
from rlhf_core.data.replay import REPLACED
from rlhf_core.data.store import (
    MANIFEST,
    StageKey,
    file_sha256,
    finish_stage,
    finished_stage,
    load_stage,
    stage_folder,
    write_bytes,
    write_table,
)
from rlhf_core.errors import CannotLearn
from rlhf_core.rollout.dynamic_sampling import sample_informative_groups
from rlhf_core.rollout.filters import raw_scores
from rlhf_core.rollout.metrics import acceptance_metrics, rollout_metrics
from rlhf_core.rollout.rejecter import build_rejecter, rejecter_settings, scorer_settings
from rlhf_core.rollout.rejection import Rejecter, Sampled, sample_with_rejection
from rlhf_core.rollout.replacement import preference_rows
from rlhf_core.rollout.sampling import Place, SampleOrigin, Sampler, places_of
from rlhf_core.seeding import derive_seed

if TYPE_CHECKING:
    from rlhf_core.runtime import Runtime

ROLLOUTS = "rollouts.parquet"
REJECTED = "rejected.parquet"


def run_stage(runtime: Runtime, policy: CheckpointRef, iteration: int) -> StageRef:
    """Draw this iteration's prompts and sample responses from `policy`.

    `rollouts.parquet` holds the kept rows, `rejected.parquet` the rejected ones, `replaced.parquet` safe replies in
    their place; such pairs stand in the run's `preferences/` as well. Metrics are `rollout/…`.

    Raises:
        CannotLearn: every response was rejected.
        NumericsError: the policy's logits are NaN or infinite (N05).
        OutOfMemory: memory ran out.
        ConfigError: a word list, a file of replies or the safety classifier cannot be read.
    """
    final = runtime.folder.iteration(iteration) / "rollouts"
    key = _stage_key(runtime, policy, iteration)
    if stored := finished_stage(final, key):
        return stored
    places = _places(runtime, iteration)
    config = rollout_config(runtime.config, policy.control, iteration)
    origin = SampleOrigin(runtime.config.seed, iteration, policy.step)
    rejecter = build_rejecter(runtime)
    engine = runtime.rollout_engine(policy)
    with runtime.progress(f"iteration {iteration}: responses", len(places)) as bar:
        sampler = Sampler(engine, runtime.tokenizer, config, origin, bar.advance)
        sampled, group_metrics = _sampled(runtime, sampler, places, rejecter)
    _require_kept(sampled, len(places), iteration)
    record_filter_timing(runtime.folder, iteration, rejecter.filters.texts, rejecter.filters.seconds)
    _write_preferences(runtime, sampled.replaced, iteration)
    with stage_folder(final) as partial:
        write_table(partial / ROLLOUTS, sampled.kept, ROLLOUT_SCHEMA)
        write_table(partial / REJECTED, sampled.rejected, ROLLOUT_SCHEMA)
        write_table(partial / REPLACED, sampled.replaced, REPLACED_SCHEMA)
        metrics = rollout_metrics(sampled, len(places)) | acceptance_metrics(sampled, rejecter.filters) | group_metrics
        metrics |= runtime.sync_metrics()
        finish_stage(partial, key, rows=len(sampled.kept), metrics=metrics)
    _report_gaps(runtime, sampled, len(places), iteration)
    return load_stage(final)


def _require_kept(sampled: Sampled, places: int, iteration: int) -> None:
    if not sampled.kept.empty:
        return
    is_cut = set(sampled.rejected["ending"]) == {"truncated"}
    cut = " All of them hit the length limit: raise rollout.max_new_tokens (or its schedule)." if is_cut else ""
    raise CannotLearn(
        f"iteration {iteration}: all {places} responses were rejected ({sampled.rejection_counts}).{cut} "
        "Look at what the policy writes; loosen rollout.rejection, or go back to an earlier checkpoint."
    )


def _write_preferences(runtime: Runtime, replaced: pd.DataFrame, iteration: int) -> None:
    """The iteration's pairs, or none where a try before this one left some."""
    path = runtime.folder.preferences / f"{iteration:06d}.jsonl"
    rows = preference_rows(replaced)
    if rows:
        write_bytes(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
    else:
        path.unlink(missing_ok=True)


def _report_gaps(runtime: Runtime, sampled: Sampled, places: int, iteration: int) -> None:
    given_up = places - len(sampled.kept)
    if given_up:
        record_event(
            runtime.folder,
            "rejected_responses",
            f"{given_up} of {places} places have no acceptable response: {sampled.rejection_counts}.",
            iteration=iteration,
            given_up=given_up,
        )


def rollout_config(config: RunConfig, control: ControlState, iteration: int) -> RolloutConfig:
    """The settings of sampling, with responses as long as the schedule (K3) and memory (F4) allow."""
    limit = max_new_tokens_controller(config, control.max_new_tokens_cuts, iteration).value
    return config.rollout.model_copy(update={"max_new_tokens": limit})


def _sampled(
    runtime: Runtime, sampler: Sampler, places: list[Place], rejecter: Rejecter
) -> tuple[Sampled, dict[str, float]]:
    """All places' responses; with dynamic sampling those of uniform groups drawn anew."""
    dynamic = runtime.config.algorithm.dynamic_sampling
    if not dynamic.enabled:
        return sample_with_rejection(sampler, places, rejecter), {}
    reward, scorer = runtime.config.reward, runtime.scorer()

    def score(rows: pd.DataFrame) -> list[float]:
        records = rows.to_dict("records")
        scores = raw_scores(scorer, records, scores_truncated=reward.scores_truncated)
        penalised = [isinstance(row["rejected_by"], str) for row in records]
        return [value + reward.penalties.unsafe * found for value, found in zip(scores, penalised, strict=True)]

    return sample_informative_groups(sampler, places, rejecter, score, max_attempts=dynamic.max_attempts)


def _places(runtime: Runtime, iteration: int) -> list[Place]:
    config = runtime.config
    drawn = draw_prompts(
        prompt_pool(runtime.folder),
        count=config.rollout.prompts_in(iteration),
        iteration=iteration,
        seed=derive_seed(config.seed, "prompts"),
        domain_weights=config.data.domain_weights,
        general_fraction=config.data.general_fraction,
    )
    return places_of(drawn, config.rollout.samples_in(iteration))


def _stage_key(runtime: Runtime, policy: CheckpointRef, iteration: int) -> StageKey:
    config = runtime.config
    return StageKey(
        stage="rollouts",
        inputs={
            "policy": file_sha256(policy.path / MANIFEST),
            "prompts": file_sha256(runtime.folder.prompts / POOL),
        },
        settings={
            "rollout": rollout_config(config, policy.control, iteration).model_dump(
                mode="json", exclude={"batch_size": True, "vllm": True, "rejection": {"safety": {"batch_size"}}}
            ),
            "rejecter": rejecter_settings(config),
            **_server_settings(config.rollout),
            "domain_weights": config.data.domain_weights,
            "general_fraction": config.data.general_fraction,
            "autocast": config.model.autocast,
            "dynamic_sampling": _dynamic_sampling_settings(runtime),
            "seed": config.seed,
            "iteration": iteration,
        },
    )


def _server_settings(rollout: RolloutConfig) -> dict[str, Any]:
    """What of the servers' settings decides what they sample; where they are does not."""
    if rollout.engine == "transformers":
        return {}
    return {"vllm": {"dtype": rollout.vllm.dtype, "extra_arguments": rollout.vllm.extra_arguments}}


def _dynamic_sampling_settings(runtime: Runtime) -> dict[str, Any] | None:
    """What decides which groups are drawn anew; None where they are not."""
    config = runtime.config
    if not config.algorithm.dynamic_sampling.enabled:
        return None
    return {
        "dynamic_sampling": config.algorithm.dynamic_sampling.model_dump(mode="json"),
        "scorer": scorer_settings(config),
    }
