"""The border before learning (D2): only rollouts that hold what they promise go on to the update."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from rlhf_core.config.run import RunConfig
from rlhf_core.data.data_docs import write_data_docs
from rlhf_core.data.events import record_event
from rlhf_core.data.expectations import check_scored, split_rows
from rlhf_core.data.records import SCORED_SCHEMA
from rlhf_core.data.refs import StageRef
from rlhf_core.data.store import (
    StageKey,
    finish_stage,
    finished_stage,
    load_stage,
    read_table,
    stage_folder,
    write_table,
)
from rlhf_core.errors import CannotLearn

if TYPE_CHECKING:
    from rlhf_core.runtime import Runtime

SCORED = "scored.parquet"
VALIDATED = "validated.parquet"
QUARANTINED = "quarantined.parquet"
EXCLUDED = "excluded.parquet"


def run_stage(runtime: Runtime, scored: StageRef, iteration: int) -> StageRef:
    """Check the scored rollouts of one iteration.

    `validated.parquet` holds the rows to learn from (all with `valid`); `excluded.parquet` those whose reward or ending
    was excluded before (N03, A5); `quarantined.parquet` those that fail an expectation, with `quarantine_reasons`.

    Raises:
        ValidationFailed: the table fails as a whole, or rows fail and the policy is to stop.
        CannotLearn: no row is left to learn from, or all are cut at the length limit with equal rewards (E08).
    """
    final = runtime.folder.iteration(iteration) / "validated"
    key = _stage_key(runtime.config, scored, iteration)
    if stored := finished_stage(final, key):
        return stored
    frame = read_table(scored.path / SCORED)
    valid, excluded, quarantined = _sorted_out(runtime, frame, iteration)
    _require_signal(valid, excluded, quarantined, iteration, runtime.config.rollout.max_new_tokens_in(iteration))
    with stage_folder(final) as partial:
        write_table(partial / VALIDATED, valid, SCORED_SCHEMA)
        write_table(partial / EXCLUDED, excluded, SCORED_SCHEMA)
        write_table(partial / QUARANTINED, quarantined, SCORED_SCHEMA)
        counts = {"rows": valid, "quarantined": quarantined, "excluded": excluded}
        metrics = {f"validation/{name}": float(len(rows)) for name, rows in counts.items()}
        finish_stage(partial, key, rows=len(valid), metrics=metrics)
    if len(quarantined):
        reasons = quarantined["quarantine_reasons"].value_counts().to_dict()
        record_event(
            runtime.folder,
            "quarantine",
            f"{len(quarantined)} of {len(frame)} rollouts were quarantined: {reasons}. See {final.name}/{QUARANTINED}.",
            iteration=iteration,
            rows=len(quarantined),
        )
    return load_stage(final)


def _stage_key(config: RunConfig, scored: StageRef, iteration: int) -> StageKey:
    limits = [config.rollout.max_prompt_tokens, config.rollout.max_new_tokens]
    return StageKey(
        stage="validated",
        inputs={"scored": scored.sha256},
        settings=[config.validation.model_dump(mode="json"), *limits, iteration],
    )


def _sorted_out(
    runtime: Runtime, frame: pd.DataFrame, iteration: int
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """`(valid, excluded, quarantined)` rows of the scored rollouts; the Data Docs of their check are written."""
    config, place = runtime.config, f"iteration {iteration}: scored rollouts"
    if frame.empty:
        raise CannotLearn(f"{place}: there are none. All samples were rejected; loosen rollout.rejection.")
    check = check_scored("scored rollouts", frame, config.rollout, iteration)
    docs = write_data_docs(runtime.folder.validation, f"iteration-{iteration:06d}", place.capitalize(), [check])
    kept, quarantined = split_rows(check, frame, config.validation, f"{place} ({docs.name})")
    is_valid = kept["valid"].to_numpy(dtype=bool)
    valid, excluded = (kept.loc[rows].reset_index(drop=True) for rows in (is_valid, ~is_valid))
    return valid, excluded, quarantined


def _require_signal(
    valid: pd.DataFrame, excluded: pd.DataFrame, quarantined: pd.DataFrame, iteration: int, max_new_tokens: int
) -> None:
    """Stop where an update could teach nothing."""
    if valid.empty:
        reasons = pd.concat([excluded["exclude_reason"], quarantined["quarantine_reasons"]]).value_counts().to_dict()
        raise CannotLearn(
            f"iteration {iteration}: no rollout is left to learn from. Reasons and their counts: {reasons}. "
            "Mend what they name (a reward model that returns NaN, penalties set to `invalid`, too strict a filter)."
        )
    endings, rewards = set(valid["ending"]), set(valid["reward"])
    if len(valid) > 1 and endings == {"truncated"} and len(rewards) == 1:
        raise CannotLearn(
            f"iteration {iteration}: all {len(valid)} responses are cut at the length limit and have the same reward "
            f"({valid['reward_raw'].iloc[0]:.4g}), so nothing can be learnt. The responses are cut: raise "
            f"rollout.max_new_tokens (now {max_new_tokens}), start from a model that ends its answers, or, where cut "
            "texts were not scored, set reward.score_truncated=true."
        )
