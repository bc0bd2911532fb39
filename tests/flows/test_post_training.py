"""The whole flow on a tiny model, through Prefect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName, FlowRunFilterParentFlowRunId
from prefect.client.schemas.objects import TaskRun

from examples.without_prefect import run as run_without_prefect
from flows.post_training import post_training
from rlhf_core.data.store import RunFolder, file_sha256
from rlhf_core.errors import ConfigError, DataError, RemoteScorerError, RunFolderError
from rlhf_core.runtime import Runtime
from tests.flows.tiny_run import (
    CALLS,
    FlakyScorer,
    metrics_rows,
    require_same_numbers,
    scored_by,
    settings,
    write_config,
)


@pytest.fixture(scope="module")
def finished(world, tmp_path_factory):
    """A finished run: its configuration's file and its outcome."""
    home = tmp_path_factory.mktemp("finished")
    config = write_config(home, settings(world, home))
    return config, post_training(config=str(config))


def test_a_run_leaves_a_report_and_its_best_policy(finished):
    _, outcome = finished
    assert outcome.iterations == 2
    assert outcome.report.read_text().lstrip().lower().startswith("<!doctype html")
    assert (outcome.best_policy / "model.safetensors").exists()


def test_the_library_alone_gives_the_same_numbers(finished, world, tmp_path):
    _, outcome = finished
    config = write_config(tmp_path, settings(world, tmp_path))
    run_without_prefect(str(config), [])
    alone = RunFolder(tmp_path / "tiny")
    through_prefect = RunFolder(outcome.folder)
    require_same_numbers(alone.path, through_prefect.path, iterations=2)
    weights = "step-000002/policy/model.safetensors"
    assert file_sha256(alone.checkpoints / weights) == file_sha256(through_prefect.checkpoints / weights)


@pytest.mark.parametrize("kind", ["grpo", "rloo", "reinforce_plus_plus"])
def test_algorithms_without_a_critic_run_through_every_stage(world, tmp_path, kind):
    sections = {"algorithm": {"kind": kind, "dynamic_sampling": {"enabled": kind == "grpo"}}}
    rollout = {"prompts_per_iteration": 4, "samples_per_prompt": 4, "max_new_tokens": 8, "min_response_tokens": 1}
    config = write_config(tmp_path, settings(world, tmp_path, rounds=1, rollout=rollout, **sections))
    outcome = post_training(config=str(config))
    row = metrics_rows(outcome.folder)[0]
    assert row["update/optimizer_steps"] > 0
    assert not [name for name in row if "critic" in name or "value" in name or name.endswith("explained_variance")]
    assert not (RunFolder(outcome.folder).checkpoints / "step-000001" / "critic").exists()
    assert "perfect critic" not in outcome.report.read_text()


def test_running_a_finished_flow_again_repeats_nothing(finished):
    config, outcome = finished
    before = contents(outcome.folder)
    again = post_training(config=str(config), resume=True)
    assert again == outcome
    assert contents(outcome.folder) == before


def test_a_name_in_use_is_refused_without_resume(finished):
    config, outcome = finished
    before = contents(outcome.folder)
    with pytest.raises(RunFolderError, match="already holds a run"):
        post_training(config=str(config))
    assert contents(outcome.folder) == before


@pytest.fixture
def flaky_scorer(monkeypatch) -> Callable[[Callable[[int], bool]], None]:
    """Let the runtime hand out a scorer some of whose calls fail, as a remote one's may."""
    calls: list[int] = []
    build = Runtime.scorer

    def install(fails_at: Callable[[int], bool]) -> None:
        monkeypatch.setattr(Runtime, "scorer", lambda runtime: FlakyScorer(build(runtime), calls, fails_at))

    return install


def test_a_failure_that_time_heals_is_retried_and_changes_no_number(finished, world, tmp_path, flaky_scorer):
    _, outcome = finished
    flaky_scorer(lambda call: call % 2 == 1)
    config = write_config(tmp_path, settings(world, tmp_path))
    shaken = post_training(config=str(config), run_name="shaken")
    require_same_numbers(shaken.folder, outcome.folder, iterations=2)
    runs = Counter({run.name: run.run_count for run in task_runs_of("shaken")})
    assert runs["scores-1"] == 2
    assert runs["rollouts-1"] == 1


def test_a_failure_that_no_retry_heals_ends_the_run_at_once_with_a_report(world, tmp_path, monkeypatch):
    calls = tmp_path / "calls"
    monkeypatch.setenv(CALLS, str(calls))
    config = write_config(tmp_path, settings(world, tmp_path, reward=scored_by("never_works")))
    with pytest.raises(DataError, match="no column `score`"):
        post_training(config=str(config), run_name="doomed")
    assert calls.stat().st_size == 1
    assert RunFolder(tmp_path / "doomed").report.exists()


def test_a_scorer_that_cannot_be_imported_is_refused_before_any_model_works(world, tmp_path):
    reward = {"scorer": "callable", "callable": {"path": "no_such:score"}}
    config = write_config(tmp_path, settings(world, tmp_path, reward=reward))
    with pytest.raises(ConfigError, match="'no_such' cannot be imported"):
        post_training(config=str(config), run_name="unscored")
    assert not (tmp_path / "unscored" / "baseline").exists()


def test_a_run_that_failed_goes_on_where_it_stopped(finished, world, tmp_path, flaky_scorer):
    _, outcome = finished
    baseline, second_iteration, last_gate = 1, 5, 7  # iteration and gate of round 1 are calls 3 and 4
    flaky_scorer({baseline, second_iteration, last_gate}.__contains__)
    config = str(write_config(tmp_path, settings(world, tmp_path, recovery={"retries": 0})))
    for number in range(3):
        with pytest.raises(RemoteScorerError):
            post_training(config=config, resume=number > 0)
    resumed = post_training(config=config, resume=True)
    require_same_numbers(resumed.folder, outcome.folder, iterations=2)


def test_a_wrong_setting_fails_before_a_folder_exists(world, tmp_path):
    config = write_config(tmp_path / "configs", settings(world, tmp_path / "runs"))
    with pytest.raises(ConfigError, match=r"ppo\.clip_rnge.*clip_range"):
        post_training(config=str(config), overrides=["ppo.clip_rnge=0.1"])
    assert not (tmp_path / "runs").exists()


def contents(folder: Path) -> dict[str, str]:
    """Every result in a run folder by its hash; the views with a clock in them are left out."""
    changing = {"lock", "report.html", "timing.jsonl", "ledger.jsonl", "flow_runs.jsonl"}
    return {
        str(path.relative_to(folder)): file_sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in changing and "tensorboard" not in path.parts
    }


def task_runs_of(run_name: str) -> list[TaskRun]:
    """Task runs of the sub-flows of a flow's run."""
    with get_client(sync_client=True) as client:
        (parent,) = client.read_flow_runs(flow_run_filter=FlowRunFilter(name=FlowRunFilterName(any_=[run_name])))
        below = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[parent.id]))
        return client.read_task_runs(flow_run_filter=below, limit=200)
