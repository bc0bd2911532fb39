"""Whole runs whose filters reject: penalised and replaced responses, a length curriculum, and a resume."""

from __future__ import annotations

import pytest

from flows.post_training import post_training
from rlhf_core.data.replay import REPLACED
from rlhf_core.data.store import RunFolder, read_table
from rlhf_core.errors import RlhfError
from rlhf_core.runtime import Runtime
from tests.flows.tiny_run import FlakyScorer, metrics_rows, require_same_numbers, settings, write_config

VOWEL = "[a-h][a-z]* .*[aeiou]$"


def config(world, home, policy: str, **sections):
    rollout = {
        "prompts_per_iteration": 12,
        "max_new_tokens": 8,
        "max_new_tokens_schedule": [[1, 4], [2, 8]],
        "min_response_tokens": 1,
        "rejection": {"policy": policy, "banned_patterns": [VOWEL], "replacement": {"replay_share": 0.5}},
    }
    ppo = settings(world, home)["ppo"] | {"ptx": {"documents_per_update": 4, "max_tokens": 32}}
    return str(write_config(home, settings(world, home, rollout=rollout, ppo=ppo, **sections)))


@pytest.mark.parametrize("policy", ["penalise", "replace"])
def test_a_run_that_was_cut_short_learns_from_the_same_rows_as_one_that_was_not(world, tmp_path, monkeypatch, policy):
    whole = RunFolder(post_training(config=config(world, tmp_path / "whole", policy)).folder)
    rows = metrics_rows(whole.path)
    assert [row["rollout/response_tokens_p95"] <= limit for row, limit in zip(rows, (4, 8), strict=True)] == [True] * 2
    assert all(row["rollout/acceptance_of_banned"] < 1 for row in rows)
    replaced = [len(read_table(whole.iteration(n) / "rollouts" / REPLACED)) for n in (1, 2)]
    assert all(replaced) == (policy == "replace") and any(replaced) == (policy == "replace")
    assert (rows[0]["reward/unsafe_fraction"] > 0) == (policy == "penalise")

    build, calls = Runtime.scorer, []
    with monkeypatch.context() as patch:
        patch.setattr(Runtime, "scorer", lambda runtime: FlakyScorer(build(runtime), calls, lambda call: call > 2))
        with pytest.raises(RlhfError):
            post_training(config=config(world, tmp_path / "cut", policy, recovery={"retries": 0}))
    cut = post_training(config=str(tmp_path / "cut" / "tiny.yaml"), resume=True)
    require_same_numbers(whole.path, cut.folder, iterations=2)


def test_what_replaced_responses_left_changes_a_later_update_alone(world, tmp_path):
    runs = {}
    for share in (0.0, 0.5):
        home = tmp_path / str(share)
        path = config(world, home, "replace")
        text = (home / "tiny.yaml").read_text().replace("replay_share: 0.5", f"replay_share: {share}")
        (home / "tiny.yaml").write_text(text)
        runs[share] = metrics_rows(post_training(config=path).folder)
    losses = {share: [row["update/ptx_loss"] for row in rows] for share, rows in runs.items()}
    assert losses[0.0][0] == losses[0.5][0]
    assert losses[0.0][1] != losses[0.5][1]
