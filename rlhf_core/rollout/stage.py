"""The rollout stage: prompts in, sampled responses out (G*)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rlhf_core.config.rollout import RolloutConfig
from rlhf_core.config.run import RunConfig
from rlhf_core.control.max_new_tokens import max_new_tokens_controller
from rlhf_core.data.events import record_event
from rlhf_core.data.prepared import POOL, prompt_pool
from rlhf_core.data.prompt_pool import draw_prompts
from rlhf_core.data.records import ROLLOUT_SCHEMA
from rlhf_core.data.refs import CheckpointRef, ControlState, StageRef
from rlhf_core.data.store import (
    MANIFEST,
    StageKey,
    file_sha256,
    finish_stage,
    finished_stage,
    load_stage,
    stage_folder,
    write_table,
)
from rlhf_core.errors import CannotLearn
from rlhf_core.rollout.dynamic_sampling import sample_informative_groups
from rlhf_core.rollout.rejection import Sampled, rejection_counts, sample_with_rejection
from rlhf_core.rollout.sampling import Place, SampleOrigin, Sampler, places_of
from rlhf_core.rollout.text_statistics import distinct_fraction, repeated_ngram_fraction
from rlhf_core.seeding import derive_seed

if TYPE_CHECKING:
    from rlhf_core.runtime import Runtime

ROLLOUTS = "rollouts.parquet"
REJECTED = "rejected.parquet"


def run_stage(runtime: Runtime, policy: CheckpointRef, iteration: int) -> StageRef:
    """Draw this iteration's prompts and sample responses from `policy`.

    `rollouts.parquet` holds the kept rows, `rejected.parquet` every rejected sample; metrics are `rollout/…`.

    Raises:
        CannotLearn: every response was rejected.
        NumericsError: the policy's logits are NaN or infinite (N05).
        OutOfMemory: memory ran out.
        ConfigError: a banned pattern is no regular expression.
    """
    final = runtime.folder.iteration(iteration) / "rollouts"
    key = _stage_key(runtime, policy, iteration)
    if stored := finished_stage(final, key):
        return stored
    places = _places(runtime, iteration)
    config = rollout_config(runtime.config, policy.control)
    origin = SampleOrigin(runtime.config.seed, iteration, policy.step)
    engine = runtime.rollout_engine(policy)
    with runtime.progress(f"iteration {iteration}: responses", len(places)) as bar:
        sampler = Sampler(engine, runtime.tokenizer, config, origin, bar.advance)
        sampled, group_metrics = _sampled(runtime, sampler, places)
    if sampled.kept.empty:
        raise CannotLearn(
            f"iteration {iteration}: all {len(places)} responses were rejected ({rejection_counts(sampled.rejected)}). "
            "Look at what the policy writes; loosen rollout.rejection, or go back to an earlier checkpoint."
        )
    with stage_folder(final) as partial:
        write_table(partial / ROLLOUTS, sampled.kept, ROLLOUT_SCHEMA)
        write_table(partial / REJECTED, sampled.rejected, ROLLOUT_SCHEMA)
        metrics = rollout_metrics(sampled, len(places)) | group_metrics | runtime.sync_metrics()
        finish_stage(partial, key, rows=len(sampled.kept), metrics=metrics)
    given_up = len(places) - len(sampled.kept)
    if given_up:
        record_event(
            runtime.folder,
            "rejected_responses",
            f"{given_up} of {len(places)} places have no acceptable response: {rejection_counts(sampled.rejected)}.",
            iteration=iteration,
            given_up=given_up,
        )
    return load_stage(final)


def rollout_config(config: RunConfig, control: ControlState) -> RolloutConfig:
    """The settings of sampling, with responses as long as memory allows (F4)."""
    limit = max_new_tokens_controller(config, control.max_new_tokens_cuts).value
    return config.rollout.model_copy(update={"max_new_tokens": limit})


def _sampled(runtime: Runtime, sampler: Sampler, places: list[Place]) -> tuple[Sampled, dict[str, float]]:
    """All places' responses; with dynamic sampling those of uniform groups drawn anew."""
    dynamic = runtime.config.algorithm.dynamic_sampling
    if not dynamic.enabled:
        return sample_with_rejection(sampler, places), {}
    reward, scorer = runtime.config.reward, runtime.scorer()

    def score(rows: pd.DataFrame) -> list[float]:
        records = rows.to_dict("records")
        asked = [i for i, row in enumerate(records) if reward.scores_truncated or row["ending"] != "truncated"]
        scores = [float("nan")] * len(records)
        for i, found in zip(asked, scorer.score([records[i] for i in asked]) if asked else [], strict=True):
            scores[i] = found
        return scores

    return sample_informative_groups(sampler, places, score, max_attempts=dynamic.max_attempts)


def rollout_metrics(sampled: Sampled, places: int) -> dict[str, float]:
    """Metrics of one iteration's rollouts.

    Args:
        sampled: kept (not empty) and rejected rows.
        places: responses wanted.
    """
    kept, rejected = sampled.kept, sampled.rejected
    lengths = np.array([len(ids) for ids in kept["response_ids"]])
    repeated = [repeated_ngram_fraction(ids) for ids in kept["response_ids"]]
    by_reason = {f"rollout/rejected_{name}": float(count) for name, count in sorted(rejection_counts(rejected).items())}
    return {
        "rollout/response_tokens_mean": float(lengths.mean()),
        "rollout/response_tokens_p95": float(np.percentile(lengths, 95)),
        **{f"rollout/{name}_fraction": _share(kept, name) for name in ("natural", "early", "truncated")},
        "rollout/acceptance_rate": len(kept) / (len(kept) + len(rejected)),
        "rollout/attempts_mean": (len(kept) + len(rejected)) / places,
        "rollout/repeated_ngram_fraction": float(np.mean(repeated)),
        "rollout/distinct_2": distinct_fraction(kept["response_ids"].tolist(), 2),
        **by_reason,
    }


def _share(rows: pd.DataFrame, ending: str) -> float:
    return [str(found) for found in rows["ending"]].count(ending) / len(rows)


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
            "rollout": rollout_config(config, policy.control).model_dump(mode="json", exclude={"batch_size", "vllm"}),
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
        "score_truncated": config.reward.scores_truncated,
        "scorer": [config.reward.scorer, config.reward_model.path],
    }
