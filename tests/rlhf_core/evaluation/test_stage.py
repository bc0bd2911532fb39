"""The baseline and the gate on a tiny world, from run folder to run folder."""

from __future__ import annotations

import math
import shutil

import pytest
import torch

from rlhf_core.checkpoints.save import new_reference, save_checkpoint
from rlhf_core.checkpoints.stage import start_policy
from rlhf_core.config.run import RunConfig
from rlhf_core.data import prepare
from rlhf_core.data.events import read_events
from rlhf_core.data.store import read_json, read_table
from rlhf_core.decisions.stage import run_stage as decide_stage
from rlhf_core.errors import CheckpointError, DataError
from rlhf_core.evaluation import stage
from rlhf_core.runtime import close_runtime, open_runtime, prepare_run
from tests.tiny_model import make_tiny_world


def length_reward(prompts: list[str], responses: list[str]) -> list[float]:
    """One point a word."""
    return [float(len(response.split())) for response in responses]


def no_reward(prompts: list[str], responses: list[str]) -> list[float]:
    return [math.nan for _ in responses]


BENCHMARKS = [
    {"name": "mmlu", "format": "mmlu_csv", "path": "mmlu", "items": 12},
    {"name": "hellaswag", "format": "hellaswag_jsonl", "path": "hellaswag.jsonl", "items": 12},
]


def config(world, home, scorer: str = "length_reward", has_benchmarks: bool = True) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "tiny",
            "home": home,
            "data": {
                "root": world.data,
                "prompts": [{"path": "prompts.jsonl"}],
                "held_out_prompts": [{"path": "prompts_heldout.jsonl"}],
                "ptx": [{"path": "ptx.jsonl"}],
                "ptx_held_out_documents": 8,
            },
            "model": {"policy": str(world.model)},
            "compute": {"device": "cpu"},
            "rollout": {"prompts_per_iteration": 4, "max_new_tokens": 8},
            "reward": {"scorer": "callable", "callable": {"path": f"{__name__}:{scorer}"}},
            "evaluation": {
                "benchmarks": BENCHMARKS if has_benchmarks else [],
                "held_out_rollouts": 8,
            },
        }
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_tiny_world(tmp_path_factory.mktemp("world"))


def opened(world, home, **changes):
    folder = prepare_run(config(world, home, **changes), resume=False)
    runtime = open_runtime(folder.path)
    prepare.run_stage(runtime)
    return runtime


@pytest.fixture(scope="module")
def runtime(world, tmp_path_factory):
    runtime = opened(world, tmp_path_factory.mktemp("runs"))
    stage.run_baseline(runtime)
    yield runtime
    close_runtime(runtime.folder.path)


def candidate(runtime, step: int, change) -> object:
    """A checkpoint whose policy's weights `change` has touched."""
    start = start_policy(runtime)
    workers = runtime.for_update(start)
    with torch.no_grad():
        change(workers.policy_model())
    ref = new_reference(runtime, step, start.control, {})
    return save_checkpoint(runtime, workers, ref, parent=start.step, experience_sha256=None)


def test_the_baseline_is_whole_and_is_not_measured_twice(runtime, monkeypatch):
    baseline = stage.load_baseline(runtime.folder)
    assert [score.name for score in baseline.benchmarks] == ["hellaswag", "mmlu"]
    assert all(score.items == 12 and score.drop == 0 and score.low < score.high for score in baseline.benchmarks)
    assert baseline.perplexity is not None and 1 < baseline.perplexity < 1e4
    held_out = read_table(runtime.folder.baseline / "reward" / stage.HELD_OUT)
    assert baseline.held_out_reward == pytest.approx(held_out["response"].str.split().map(len).mean())
    assert (held_out["kl_nats"].abs() < 1e-5).all()
    calibration = read_json(runtime.folder.baseline / stage.CALIBRATION)
    assert calibration == {"mean": baseline.held_out_reward, "std": baseline.held_out_reward_std}
    monkeypatch.setattr(stage, "_abilities", None)
    monkeypatch.setattr(stage, "_held_out", None)
    assert stage.run_baseline(runtime) == baseline


def test_the_sft_model_shows_no_change_at_its_own_gate(runtime):
    found = stage.run_gate(runtime, start_policy(runtime), 1)
    baseline = stage.load_baseline(runtime.folder)
    assert all(score.drop == score.margin_drop == 0 and score.p_value == 1 for score in found.benchmarks)
    assert (found.reward_gain, found.reward_gain_low, found.reward_gain_high) == (0, 0, 0)
    assert found.perplexity == baseline.perplexity and found.held_out_reward == baseline.held_out_reward
    assert abs(found.held_out_kl_nats) < 1e-5


def test_a_changed_policy_is_measured_decided_and_both_are_kept(runtime, monkeypatch):
    def shake(model):
        torch.manual_seed(3)
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight) * weight.std())

    policy = candidate(runtime, 1, shake)
    found = stage.run_gate(runtime, policy, 2)
    baseline = stage.load_baseline(runtime.folder)
    assert any(score.margin_drop != 0 for score in found.benchmarks)
    assert found.held_out_kl_nats > 1e-4 and found.perplexity != baseline.perplexity
    after = read_table(found.path / stage.HELD_OUT)["reward_raw"]
    before = read_table(runtime.folder.baseline / "reward" / stage.HELD_OUT)["reward_raw"]
    assert found.reward_gain == pytest.approx((after.mean() - before.mean()) / before.std(ddof=0))
    assert found.reward_gain_low <= found.reward_gain <= found.reward_gain_high
    monkeypatch.setattr(stage, "_abilities", None)
    assert stage.run_gate(runtime, policy, 2) == found

    decision = decide_stage(runtime, 2, policy, found, baseline)
    stored = read_json(runtime.folder.round(2) / "decision.json")
    assert (stored["kind"], stored["promote"]) == (decision.kind, decision.promote)
    assert decide_stage(runtime, 2, policy, found, baseline) == decision
    assert [row["round"] for row in read_events(runtime.folder) if row["kind"] == "decision"] == [2]


def test_a_policy_of_nan_is_judged_and_rolled_back(runtime, monkeypatch):
    policy = start_policy(runtime)
    model = runtime.for_update(policy).policy_model()
    with torch.no_grad():
        model.model.norm.weight.fill_(math.nan)
    runtime.mark_saved(policy)  # the workers pass for the checkpoint, as no NaN would be saved
    shutil.rmtree(runtime.folder.round(3), ignore_errors=True)
    found = stage.run_gate(runtime, policy, 3)
    runtime.drop()
    assert all(score.accuracy == 0 for score in found.benchmarks)
    assert math.isnan(found.held_out_reward) and math.isnan(found.held_out_kl_nats)
    decision = decide_stage(runtime, 3, policy, found, stage.load_baseline(runtime.folder))
    assert decision.kind == "roll_back" and not decision.promote
    assert stage.run_gate(runtime, policy, 3).model_dump_json() == found.model_dump_json()
    assert decide_stage(runtime, 3, policy, found, found) == decision
    assert any(row["kind"] == "non_finite" for row in read_events(runtime.folder))


def test_without_benchmarks_a_gate_judges_reward_and_perplexity(world, tmp_path):
    runtime = opened(world, tmp_path, has_benchmarks=False)
    try:
        baseline = stage.run_baseline(runtime)
        found = stage.run_gate(runtime, start_policy(runtime), 1)
        assert found.benchmarks == baseline.benchmarks == ()
        assert found.perplexity == baseline.perplexity and found.held_out_reward == baseline.held_out_reward
        assert decide_stage(runtime, 1, start_policy(runtime), found, baseline).kind in ("continue", "adjust_ptx")
    finally:
        close_runtime(runtime.folder.path)


def test_without_a_baseline_or_its_checkpoint_nothing_is_measured(world, tmp_path):
    runtime = opened(world, tmp_path)
    try:
        start = start_policy(runtime)
        with pytest.raises(DataError, match="no finished baseline"):
            stage.run_gate(runtime, start, 1)
        candidate(runtime, 1, lambda model: None)
        assert stage._sft_policy(runtime).step == 0
        shutil.rmtree(start.path)
        with pytest.raises(CheckpointError, match="checkpoint 0"):
            stage._sft_policy(runtime)
    finally:
        close_runtime(runtime.folder.path)


def test_a_baseline_without_any_reward_is_refused(world, tmp_path):
    runtime = opened(world, tmp_path, scorer="no_reward")
    try:
        with pytest.raises(DataError, match="none of 8 held-out responses"):
            stage.run_reward_baseline(runtime)
    finally:
        close_runtime(runtime.folder.path)
