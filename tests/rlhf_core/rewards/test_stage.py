import math

import pytest

from rlhf_core.data.events import read_events
from rlhf_core.data.store import read_table, write_json
from rlhf_core.errors import ConfigError
from rlhf_core.rewards.stage import CALIBRATION, SCORED, run_stage
from rlhf_core.rollout.stage import run_stage as roll_out
from tests.rlhf_core.stage_runtime import make_stage_runtime
from tests.tiny_model import make_tiny_world

ROLLOUT = {"prompts_per_iteration": 6, "max_new_tokens": 8, "batch_size": 6}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory):
    return make_tiny_world(tmp_path_factory.mktemp("world") / "tiny")


@pytest.fixture
def runtime_of(world, tmp_path, monkeypatch):
    """A runtime whose scorer counts letters, and NaN for the first prompt where `has_nan` is set."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(has_nan: bool = False, **reward):
        name = f"letters_{tmp_path.name}_{int(has_nan)}"
        first = "float('nan')" if has_nan else "len(r[0])"
        (tmp_path / f"{name}.py").write_text(f"def score(p, r):\n    return [{first}, *(len(x) for x in r[1:])]\n")
        settings = {"scorer": "callable", "callable": {"path": f"{name}:score"}, **reward}
        return make_stage_runtime(tmp_path / "home", world, rollout=ROLLOUT, reward=settings)

    return make


def test_rewards_are_the_standardised_scores_and_are_computed_once(runtime_of):
    runtime, policy = runtime_of(batch_size=4, penalties={"early_end": 0.0, "truncation": 0.0})
    rollouts = roll_out(runtime, policy, 1)
    scored = run_stage(runtime, rollouts, 1)
    frame = read_table(scored.path / SCORED)
    assert frame["reward_raw"].tolist() == frame["response"].map(len).tolist()
    want = (frame["reward_raw"] - frame["reward_raw"].mean()) / frame["reward_raw"].std(ddof=0)
    assert frame["reward"].tolist() == pytest.approx(want.clip(-2, 2).tolist(), abs=1e-6)
    assert run_stage(runtime, rollouts, 1) == scored
    assert runtime.scorer_calls == 1


def test_case_N03_an_excluded_reward_is_counted_and_reported_with_its_prompt(runtime_of):
    runtime, policy = runtime_of(has_nan=True)
    scored = run_stage(runtime, roll_out(runtime, policy, 1), 1)
    frame = read_table(scored.path / SCORED)
    bad = frame[~frame["valid"].astype(bool)]
    assert len(bad) == 1 and bad["exclude_reason"].tolist() == ["score is NaN"]
    assert math.isnan(bad["reward"].iloc[0])
    assert scored.metrics["reward/excluded_count"] == 1.0
    event = next(event for event in read_events(runtime.folder) if event["kind"] == "excluded_reward")
    assert event["facts"]["prompt_ids"] == bad["prompt_id"].tolist() and event["iteration"] == 1


def test_running_statistics_come_from_the_iterations_on_disk(runtime_of):
    runtime, policy = runtime_of(normalisation="running", clip=50.0, penalties={"early_end": 0.0, "truncation": 0.0})
    frames = [read_table(run_stage(runtime, roll_out(runtime, policy, n), n).path / SCORED) for n in (1, 2)]
    raw = [*frames[0]["reward_raw"], *frames[1]["reward_raw"]]
    mean = sum(raw) / len(raw)
    std = math.sqrt(sum((x - mean) ** 2 for x in raw) / len(raw))
    assert frames[1]["reward"].tolist() == pytest.approx([(x - mean) / std for x in raw[len(frames[0]) :]], abs=1e-6)


def test_calibrated_rewards_read_the_baselines_file(runtime_of):
    runtime, policy = runtime_of(normalisation="calibrated", clip=1e9, penalties={"early_end": 0.0, "truncation": 0.0})
    rollouts = roll_out(runtime, policy, 1)
    with pytest.raises(ConfigError, match="calibrated"):
        run_stage(runtime, rollouts, 1)
    write_json(runtime.folder.baseline / CALIBRATION, {"mean": 10.0, "std": 4.0})
    frame = read_table(run_stage(runtime, rollouts, 1).path / SCORED)
    assert frame["reward"].tolist() == pytest.approx(((frame["reward_raw"] - 10.0) / 4.0).tolist(), abs=1e-6)
