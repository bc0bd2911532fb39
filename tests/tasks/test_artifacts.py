"""What the UI is shown."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from prefect.logging import disable_run_logger

from rlhf_core.data.refs import BenchmarkScore, EvaluationResult
from tasks.artifacts import artifact_key, gate_rows, telemetry


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True))
def test_a_key_has_only_what_prefect_allows_whatever_the_run_is_called(name):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", artifact_key(name, "gate-1"))


def test_the_gate_table_says_score_interval_drop_and_reward():
    score = BenchmarkScore(
        name="mmlu", accuracy=0.31239, low=0.27, high=0.35, items=500, drop=0.012, drop_low=-0.004, drop_high=0.028
    )
    evaluation = EvaluationResult(
        step=5,
        benchmarks=(score,),
        perplexity=12.345678,
        held_out_reward=0.5,
        held_out_reward_std=1.0,
        reward_gain=1.25,
        reward_gain_low=1.0,
        reward_gain_high=1.5,
        path=Path("rounds/001/evaluation"),
    )
    rows = {row["measure"]: row for row in gate_rows(evaluation)}
    assert rows["mmlu"] == {
        "measure": "mmlu",
        "value": 0.3124,
        "interval": "0.270 to 0.350",
        "drop": "+0.012 (-0.004 to +0.028)",
        "items": "500",
    }
    assert rows["perplexity"]["value"] == 12.3457
    assert rows["held-out reward"]["value"] == 0.5
    assert rows["reward gain, std of the baseline"]["interval"] == "1.000 to 1.500"


def test_a_picture_that_cannot_be_stored_does_not_fail_the_run():
    @telemetry
    def publish_to_nowhere() -> None:
        raise ConnectionError("the server is gone")

    with disable_run_logger():
        publish_to_nowhere()
