"""The update stage: files in, checkpoint out, once."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from rlhf_core.checkpoints.registry import Registry
from rlhf_core.checkpoints.stage import start_policy
from rlhf_core.config.memory import MemoryConfig
from rlhf_core.config.ppo import KlControllerConfig
from rlhf_core.data.events import read_events
from rlhf_core.data.records import SAMPLED_TENSORS, SCORED_SCHEMA
from rlhf_core.data.refs import CheckpointRef, ControlState, StageRef
from rlhf_core.data.store import StageKey, finish_stage, load_stage, stage_folder, write_table
from rlhf_core.engines.memory_use import MemoryUse, MemoryWatch
from rlhf_core.errors import CannotLearn, DataError
from rlhf_core.experience import stage as experience_stage
from rlhf_core.rollout.stage import rollout_config
from rlhf_core.runtime import Runtime, close_runtime, open_runtime, prepare_run
from rlhf_core.update import stage as update_stage
from rlhf_core.update.stage import memory_answer, next_control, read_experience
from tests.rlhf_core.engines.trainer_case import ppo, run_config
from tests.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory):
    model = make_tiny_model(tmp_path_factory.mktemp("stages") / "model")
    config = run_config(model, ppo=ppo(mini_batch_rollouts=2, micro_batch_rollouts=2))
    folder = prepare_run(config, resume=False)
    yield open_runtime(folder.path)
    close_runtime(folder.path)


@pytest.fixture(scope="module")
def policy(runtime: Runtime) -> CheckpointRef:
    return start_policy(runtime)


def rollout_rows(*, valid: tuple[bool, ...] = (True, True, False, True), engine_logprob: float = -5.0) -> pd.DataFrame:
    rows = []
    for index, is_valid in enumerate(valid):
        response = list(range(10, 11 + index))
        rows.append(
            {
                "iteration": 1,
                "prompt_id": f"p{index}",
                "sample_index": 0,
                "domain": "general",
                "prompt": "a",
                "response": "b",
                "prompt_ids": [5, 6, 7][: index + 1],
                "response_ids": response,
                "engine_logprobs": [engine_logprob] * len(response),
                "seed": index,
                "finish_reason": "eos",
                "ending": ("natural", "truncated")[index % 2],
                "attempts": 1,
                "rejected_by": None,
                "policy_step": 0,
                "reward_raw": 1.0,
                "reward": float(index) - 1.0 if is_valid else float("nan"),
                "valid": is_valid,
                "exclude_reason": None,
            }
        )
    return pd.DataFrame(rows)


def stored(runtime: Runtime, frame: pd.DataFrame, iteration: int) -> StageRef:
    final = runtime.folder.iteration(iteration) / "validated"
    with stage_folder(final) as partial:
        write_table(partial / "validated.parquet", frame, SCORED_SCHEMA)
        finish_stage(partial, StageKey("validated", {}, iteration), rows=len(frame), metrics={})
    return load_stage(final)


def test_an_iteration_makes_experience_and_then_a_checkpoint_and_does_neither_twice(runtime, policy):
    validated = stored(runtime, rollout_rows(), 1)
    experience = experience_stage.run_stage(runtime, policy, validated, 1)
    tensors = load_file(experience.path / "experience.safetensors")
    assert set(SAMPLED_TENSORS) == set(tensors)
    assert experience.rows == 3  # the row that is not valid is left out
    assert tensors["response_mask"].sum(1).tolist() == [1, 2, 4]
    assert experience.metrics["experience/kl_exact_nats"] == pytest.approx(0.0, abs=1e-6)
    mean_gap = (tensors["old_logprobs"][tensors["response_mask"]] + 5.0).abs().mean().item()
    assert experience.metrics["experience/engine_mismatch_nats"] == pytest.approx(mean_gap)

    first = update_stage.run_stage(runtime, policy, experience, 1)
    assert first.step == 1
    assert first.control.kl_coef == pytest.approx(0.025)  # KL is 0, so β is halved
    assert first.metrics["control/kl_coef"] == first.control.kl_coef
    assert first.metrics["update/optimizer_steps"] == 4.0
    after = runtime.at(first).evaluate_rollouts(read_experience(experience.path / "experience.safetensors").rollouts)
    assert not torch.equal(after.logprobs, tensors["old_logprobs"])

    stamp = (first.path / "MANIFEST.json").stat().st_mtime_ns
    assert experience_stage.run_stage(runtime, policy, validated, 1) == experience
    assert update_stage.run_stage(runtime, policy, experience, 1) == first
    norm, average = (f"update/actor_grad_norm{suffix}" for suffix in ("", "_average"))
    assert first.metrics[average] == first.metrics[norm]
    kept = Registry(runtime.folder).current()  # As a resumed run finds it.
    assert kept is not None
    follows = experience_stage.run_stage(runtime, kept, stored(runtime, rollout_rows(), 4), 4)
    second = update_stage.run_stage(runtime, kept, follows, 4)
    assert second.metrics[average] == pytest.approx(0.9 * first.metrics[norm] + 0.1 * second.metrics[norm])
    assert (first.path / "MANIFEST.json").stat().st_mtime_ns == stamp


def test_an_iteration_with_exploration_noise_learns_against_the_engines_log_probs_and_the_next_does_not(tmp_path):
    model = make_tiny_model(tmp_path / "model")
    rollout = {"prompts_per_iteration": 8, "max_new_tokens": 8, "exploration": {"iterations": 1}}
    settings = ppo(mini_batch_rollouts=4, epochs=1)
    folder = prepare_run(run_config(model, rollout=rollout, ppo=settings), resume=False)
    runtime = open_runtime(folder.path)
    try:
        start = start_policy(runtime)
        explored, plain = (
            experience_stage.run_stage(runtime, start, stored(runtime, rollout_rows(), number), number)
            for number in (1, 2)
        )
        noisy, usual = (load_file(ref.path / "experience.safetensors") for ref in (explored, plain))
        assert set(usual) == set(SAMPLED_TENSORS) == set(noisy) - {"policy_logprobs"}
        assert torch.equal(noisy["policy_logprobs"], usual["old_logprobs"])
        assert torch.equal(noisy["old_logprobs"], torch.where(noisy["response_mask"], -5.0, 0.0))
        updated = update_stage.run_stage(runtime, start, explored, 1)
        ratios = (usual["old_logprobs"] + 5.0).exp()[usual["response_mask"]]
        assert updated.metrics["update/ratio_max"] == pytest.approx(float(ratios.max()), rel=1e-4)
        assert updated.metrics["update/ratio_first_deviation"] < 1e-4
    finally:
        close_runtime(folder.path)


def test_without_a_valid_row_there_is_nothing_to_learn(runtime, policy):
    validated = stored(runtime, rollout_rows(valid=(False, False)), 2)
    with pytest.raises(CannotLearn, match="none of 2 rollouts"):
        experience_stage.run_stage(runtime, policy, validated, 2)


def test_engine_log_probs_that_do_not_fit_the_tokens_are_refused(runtime, policy):
    frame = rollout_rows()
    frame.at[1, "engine_logprobs"] = [-1.0]
    with pytest.raises(DataError, match="row 1: 1 engine log-probs for 2"):
        experience_stage.run_stage(runtime, policy, stored(runtime, frame, 3), 3)


def test_beta_answers_the_kl_only_where_it_is_adaptive():
    control = ControlState(kl_coef=0.1, ptx_coef=0.2)
    adaptive = KlControllerConfig(smoothing=0.0)
    after = next_control(control, adaptive, 1.0, rollouts=8)
    assert (after.kl_coef, after.kl_average_nats, after.ptx_coef) == (0.2, 1.0, 0.2)
    fixed = next_control(control, KlControllerConfig(kind="fixed"), 1.0, rollouts=8)
    assert fixed == control.model_copy(update={"kl_average_nats": 1.0})


@pytest.mark.parametrize("kind", ["adaptive", "proportional", "pid"])
def test_a_controller_that_goes_on_from_a_stored_state_does_what_an_uninterrupted_one_does(kind):
    config = KlControllerConfig(kind=kind, horizon_rollouts=100)
    control = ControlState(kl_coef=0.1, ptx_coef=0.0)
    seen = [0.09, 0.05, 0.03, 0.001, 0.0, 0.2]
    straight = control
    for kl_nats in seen:
        straight = next_control(straight, config, kl_nats, rollouts=16)
        control = next_control(
            ControlState.model_validate_json(control.model_dump_json()), config, kl_nats, rollouts=16
        )
        assert control == straight
    first = next_control(ControlState(kl_coef=0.1, ptx_coef=0.0), config, seen[0], rollouts=16)
    assert first.kl_coef > 0.1


def test_the_moving_average_of_kl_goes_on_from_the_checkpoint():
    control = ControlState(kl_coef=0.1, ptx_coef=0.0, kl_average_nats=0.02)
    assert next_control(control, KlControllerConfig(smoothing=0.5), 0.03, rollouts=8).kl_average_nats == pytest.approx(
        0.025
    )


def test_experience_that_is_missing_damaged_or_short_of_a_tensor_is_refused(tmp_path: Path):
    path = tmp_path / "experience.safetensors"
    with pytest.raises(DataError, match="cannot be read"):
        read_experience(path)
    path.write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot be read"):
        read_experience(path)
    save_file({"advantages": torch.zeros(1)}, path)
    with pytest.raises(DataError, match="old_logprobs"):
        read_experience(path)


def test_scarce_memory_shortens_the_next_responses_and_calm_restores_them_across_checkpoints(
    runtime, policy, monkeypatch
):
    uses = iter(MemoryUse(used, 100) for used in (90, 86, 85, 20, 20))
    monkeypatch.setattr(runtime, "memory", MemoryWatch(lambda: next(uses)))
    long = runtime.config.rollout.model_copy(update={"max_new_tokens": 64})
    monkeypatch.setattr(runtime, "config", runtime.config.model_copy(update={"rollout": long}))
    control, limits = policy.control, []
    for iteration in range(1, 6):
        control = ControlState.model_validate_json(memory_answer(runtime, control, iteration).model_dump_json())
        limits.append(rollout_config(runtime.config, control, iteration + 1).max_new_tokens)
    assert limits == [48, 36, 48, 64, 64]
    events = [event for event in read_events(runtime.folder) if event["kind"] == "memory_pressure"]
    assert [(event["facts"]["before"], event["facts"]["after"]) for event in events] == [
        (64, 48),
        (48, 36),
        (36, 48),
        (48, 64),
    ]


def test_memory_that_is_not_watched_changes_nothing(runtime, policy, monkeypatch):
    monkeypatch.setattr(runtime, "memory", MemoryWatch(lambda: pytest.fail("read")))
    config = runtime.config.model_copy(update={"memory": MemoryConfig(watch=False)})
    monkeypatch.setattr(runtime, "config", config)
    assert memory_answer(runtime, policy.control, 1) == policy.control
