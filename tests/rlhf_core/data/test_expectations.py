from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from rlhf_core.config.rollout import RolloutConfig
from rlhf_core.config.run import ValidationConfig
from rlhf_core.data.expectations import check_pairs, check_prompts, check_scored, split_rows
from rlhf_core.errors import ValidationFailed

ROLLOUT = RolloutConfig(max_prompt_tokens=4, max_new_tokens=8)


def with_cell(frame: pd.DataFrame, row: int, **cells: Any) -> pd.DataFrame:
    spoilt = frame.astype(object)
    for column, value in cells.items():
        spoilt.at[row, column] = value
    return spoilt


def test_sound_tables_pass(scored):
    prompts = pd.DataFrame({"prompt_id": ["a"], "domain": ["d"], "prompt": ["p"], "prompt_ids": [[1]]})
    pairs = pd.DataFrame({"pair_id": ["a"], "domain": ["d"], "prompt": ["p"], "chosen": ["c"], "rejected": ["r"]})
    assert check_scored("s", scored, ROLLOUT, 3).is_success
    assert check_prompts("p", prompts, ROLLOUT).is_success
    assert check_pairs("q", pairs).is_success


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"prompt": None}, "every needed field is given"),
        ({"iteration": 2}, "a rollout is of iteration 3"),
        ({"prompt_id": "p1"}, "(prompt_id, sample_index) is unique"),
        ({"prompt_ids": [1] * 5}, "a prompt has 1 to 4 tokens"),
        ({"response_ids": [], "engine_logprobs": []}, "a response has 1 to 8 tokens (rollout.max_new_tokens)"),
        (
            {"response_ids": [1] * 9, "engine_logprobs": [-1.0] * 9},
            "a response has 1 to 8 tokens (rollout.max_new_tokens)",
        ),
        ({"engine_logprobs": [-1.0]}, "every response token has a log-prob"),
        ({"engine_logprobs": [-1.0, 0.5, -1.0]}, "log-probs are finite and at most 0"),
        ({"engine_logprobs": [-1.0, math.nan, -1.0]}, "log-probs are finite and at most 0"),
        ({"engine_logprobs": [-1.0, -math.inf, -1.0]}, "log-probs are finite and at most 0"),
        ({"ending": "cut"}, "ending is natural, early or truncated"),
        ({"ending": "truncated"}, "a response is truncated exactly if the engine hit the length limit"),
        ({"finish_reason": "length"}, "a response is truncated exactly if the engine hit the length limit"),
        ({"reward_raw": math.nan}, "a valid rollout has finite rewards; an excluded one has a reason"),
        ({"reward": math.inf}, "a valid rollout has finite rewards; an excluded one has a reason"),
        ({"valid": False}, "a valid rollout has finite rewards; an excluded one has a reason"),
    ],
)
def test_each_fault_of_a_scored_rollout_is_found_in_its_row(scored, cells, reason):
    reasons = check_scored("s", with_cell(scored, 2, **cells), ROLLOUT, 3).reasons
    assert reasons[2] == [reason]
    assert set(reasons) == ({1, 2} if "prompt_id" in cells else {2})


def test_an_excluded_rollout_may_lack_its_reward(scored):
    spoilt = with_cell(scored, 2, valid=False, exclude_reason="non-finite reward", reward_raw=math.nan, reward=math.nan)
    assert check_scored("s", spoilt, ROLLOUT, 3).is_success


def test_a_table_that_lacks_a_column_stops_whatever_the_policy_is(scored):
    frame = scored.drop(columns="reward")
    check = check_scored("s", frame, ROLLOUT, 3)
    with pytest.raises(ValidationFailed, match=r"here: not true that the table has the columns .*reward"):
        split_rows(check, frame, ValidationConfig(), "here")
    for outcome in (check_prompts("p", frame[["prompt"]], ROLLOUT), check_pairs("q", frame[["prompt"]])):
        assert [item.is_about_table for item in outcome.checks] == [True]


def test_identical_pairs_and_long_prompts_are_found():
    pairs = pd.DataFrame({"pair_id": ["a"], "domain": ["d"], "prompt": ["p"], "chosen": ["c"], "rejected": ["c"]})
    assert check_pairs("q", pairs).reasons == {0: ["chosen and rejected differ in more than white space and case"]}
    prompts = pd.DataFrame({"prompt_id": ["a"], "domain": ["d"], "prompt": ["p"], "prompt_ids": [[1] * 5]})
    assert check_prompts("p", prompts, ROLLOUT).reasons == {
        0: ["a prompt has 1 to 4 tokens (rollout.max_prompt_tokens)"]
    }


@pytest.mark.parametrize(
    ("cells", "rows", "reason"),
    [
        ({"prompt": ""}, {1}, "a prompt has text"),
        ({"prompt_ids": []}, {1}, "a prompt has 1 to 4 tokens (rollout.max_prompt_tokens)"),
        ({"domain": None}, {1}, "every needed field is given"),
        ({"prompt_id": "a"}, {0, 1}, "a prompt stands once in its table"),
    ],
)
def test_each_fault_of_a_prompt_is_found_in_its_row(cells, rows, reason):
    prompts = pd.DataFrame({"prompt_id": ["a", "b"], "domain": "d", "prompt": "p", "prompt_ids": [[1], [2]]})
    assert check_prompts("p", with_cell(prompts, 1, **cells), ROLLOUT).reasons == {row: [reason] for row in rows}


@pytest.mark.parametrize(
    ("cells", "rows", "reason"),
    [
        ({"prompt": ""}, {1}, "prompt has text"),
        ({"chosen": ""}, {1}, "chosen has text"),
        ({"rejected": ""}, {1}, "rejected has text"),
        ({"domain": None}, {1}, "every needed field is given"),
        ({"pair_id": "a"}, {0, 1}, "a pair stands once in its table"),
    ],
)
def test_each_fault_of_a_pair_is_found_in_its_row(cells, rows, reason):
    pairs = pd.DataFrame({"pair_id": ["a", "b"], "domain": "d", "prompt": "p", "chosen": "c", "rejected": "r"})
    assert check_pairs("q", with_cell(pairs, 1, **cells)).reasons == {row: [reason] for row in rows}


def test_a_log_prob_may_exceed_0_by_rounding(scored):
    assert check_scored("s", with_cell(scored, 2, engine_logprobs=[-1.0, 9e-5, -1.0]), ROLLOUT, 3).is_success


@pytest.mark.parametrize(
    ("rejected", "is_refused"),
    [("Go now!", False), ("go\n  NOW.", True), ("Gonow.", True), ("Go now", False), ("Go now. ", True)],
)
def test_a_pair_that_differs_in_white_space_and_case_alone_teaches_nothing(rejected, is_refused):
    pairs = pd.DataFrame(
        {"pair_id": ["a"], "domain": ["d"], "prompt": ["p"], "chosen": ["Go now."], "rejected": [rejected]}
    )
    reason = "chosen and rejected differ in more than white space and case"
    assert check_pairs("q", pairs).reasons == ({0: [reason]} if is_refused else {})


def test_failed_rows_are_set_apart_with_their_reasons_or_stop_the_run(scored):
    spoilt = with_cell(scored, 2, ending="cut", reward=math.nan)
    check = check_scored("s", spoilt, ROLLOUT, 3)
    kept, bad = split_rows(check, spoilt, ValidationConfig(), "here")
    assert kept["prompt_id"].tolist() == [f"p{row}" for row in (0, 1, 3, 4, 5, 6, 7)]
    assert bad["prompt_id"].tolist() == ["p2"]
    assert bad["quarantine_reasons"][0].startswith("fails: ending is natural")
    with pytest.raises(ValidationFailed, match=r"1 of 8 rows fail.*on_failure=quarantine"):
        split_rows(check, spoilt, ValidationConfig(on_failure="stop"), "here")
    with pytest.raises(ValidationFailed, match=r"more than validation.max_quarantined_fraction=0.1"):
        split_rows(check, spoilt, ValidationConfig(max_quarantined_fraction=0.1), "here")
