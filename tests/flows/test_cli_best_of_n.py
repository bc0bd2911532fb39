"""`rlhf best-of-n` as a person uses it."""

from __future__ import annotations

import json

import pytest

from rlhf_core.checkpoints.stage import start_policy
from rlhf_core.config.run import RunConfig
from rlhf_core.data import prepare
from rlhf_core.runtime import close_runtime, open_runtime, prepare_run
from tests.flows.tiny_run import settings


def test_the_best_of_a_runs_prompts_lie_in_its_folder_with_the_curve(rlhf, world, tmp_path):
    folder = prepare_run(RunConfig.model_validate(settings(world, tmp_path)), resume=False)
    runtime = open_runtime(folder.path)
    prepare.run_stage(runtime)
    start_policy(runtime)
    close_runtime(folder.path)
    ended, out, _ = rlhf("best-of-n", folder.path, "--n", 4, "--prompts", 3, "--pool", "train")
    lines = out.splitlines()
    assert ended == 0 and lines[-1] == f"3 responses kept: {folder.path / 'best_of_n'}"
    assert [line.split(":")[0] for line in lines[:-1]] == [f"expected best of {k}" for k in (1, 2, 4)]
    values = [float(line.split(":")[1]) for line in lines[:-1]]
    assert values == sorted(values)
    kept = [json.loads(line) for line in (folder.path / "best_of_n" / "kept.jsonl").read_text().splitlines()]
    assert sum(row["reward_raw"] for row in kept) / 3 == pytest.approx(values[-1], rel=1e-3)
    ended, _, err = rlhf("best-of-n", folder.path, "--n", 0)
    assert ended == 2 and "both must be 1 or more" in err


def test_a_folder_that_is_no_run_is_named(rlhf, tmp_path):
    ended, _, err = rlhf("best-of-n", tmp_path / "nothing")
    assert ended == 6 and "is no run" in err
