from __future__ import annotations

import math

import pandas as pd
import pytest

from rlhf_core.data.events import read_events
from rlhf_core.data.records import SCORED_SCHEMA
from rlhf_core.data.refs import StageRef
from rlhf_core.data.store import StageKey, finish_stage, load_stage, read_table, stage_folder, write_table
from rlhf_core.data.validation_stage import run_stage
from rlhf_core.errors import CannotLearn


@pytest.fixture
def run(make_config, make_runtime):
    """Validate a frame as the scored rollouts of iteration 3."""
    runtime = make_runtime(make_config({}, rollout={"max_new_tokens": 8}))

    def validate(frame: pd.DataFrame) -> StageRef:
        final = runtime.folder.iteration(3) / "scored"
        with stage_folder(final) as partial:
            write_table(partial / "scored.parquet", frame, SCORED_SCHEMA)
            finish_stage(partial, StageKey("scored", {}, None), rows=len(frame), metrics={})
        return run_stage(runtime, load_stage(final), 3)

    validate.folder = runtime.folder
    return validate


def test_sound_rollouts_go_on_unchanged_and_a_second_call_returns_the_stored_result(run, scored):
    ref = run(scored)
    assert ref.metrics == {"validation/rows": 8.0, "validation/quarantined": 0.0, "validation/excluded": 0.0}
    stored = read_table(ref.path / "validated.parquet")
    assert stored[SCORED_SCHEMA.names].to_dict("records") == scored[SCORED_SCHEMA.names].to_dict("records")
    assert run(scored) == ref
    assert (run.folder.validation / "iteration-000003.html").exists()


def test_case_N03_a_rollout_without_a_finite_reward_alone_does_not_reach_the_update(run, scored):
    scored.loc[2, ["reward_raw", "reward"]] = math.nan
    scored.loc[2, "valid"] = False
    scored["exclude_reason"] = [None, None, "non-finite reward", *[None] * 5]
    ref = run(scored)
    assert read_table(ref.path / "validated.parquet")["prompt_id"].tolist() == [f"p{n}" for n in (0, 1, 3, 4, 5, 6, 7)]
    excluded = read_table(ref.path / "excluded.parquet")
    assert excluded[["prompt_id", "valid", "exclude_reason"]].values.tolist() == [["p2", False, "non-finite reward"]]


def test_a_row_that_fails_an_expectation_is_kept_apart_and_recorded_once(run, scored):
    scored.loc[5, "ending"] = "cut"
    ref = run(scored)
    bad = read_table(ref.path / "quarantined.parquet")
    assert bad[["prompt_id", "quarantine_reasons"]].values.tolist() == [
        ["p5", "fails: ending is natural, early or truncated"]
    ]
    assert (ref.rows, ref.metrics["validation/quarantined"]) == (7, 1.0)
    run(scored)
    events = read_events(run.folder)
    assert [(row["kind"], row["iteration"], row["facts"]["rows"]) for row in events] == [("quarantine", 3, 1)]


@pytest.mark.parametrize("rejected_by", [None, "banned"], ids=["accepted", "penalised"])
def test_case_E08_all_responses_cut_with_equal_rewards_stop_the_run(run, scored, rejected_by):
    cut = scored.assign(finish_reason="length", ending="truncated", rejected_by=rejected_by)
    with pytest.raises(CannotLearn, match=r"responses are cut: raise rollout.max_new_tokens \(now 8\)"):
        run(cut.assign(reward_raw=0.35, reward=0.0))
    assert run(cut).rows == 8
    assert run(scored.assign(reward_raw=0.35, reward=0.0)).rows == 8


def test_rollouts_of_which_none_is_valid_stop_the_run_with_the_counts(run, scored):
    scored["exclude_reason"] = ["early end"] * 5 + ["non-finite reward"] * 3
    with pytest.raises(CannotLearn, match=r"'early end': 5, 'non-finite reward': 3"):
        run(scored.assign(valid=False))


def test_no_rollouts_at_all_stop_the_run(run, scored):
    with pytest.raises(CannotLearn, match="there are none"):
        run(scored.iloc[:0])
