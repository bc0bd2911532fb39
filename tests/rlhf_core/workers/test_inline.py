"""The worker group of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rlhf_core.data.collate import padded
from rlhf_core.engines.protocols import Generation, GenerationRequest, RolloutTensors, Sampling, WorkerGroup
from rlhf_core.errors import EngineError, OutOfMemory
from rlhf_core.workers.inline import InlineWorkers
from tests.rlhf_core.engines.trainer_case import CONTROL, CPU, ppo, random_experience, random_rollouts, run_config
from tests.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("inline") / "model")


def test_an_update_survives_save_and_load_through_the_protocol(model, tmp_path):
    workers: WorkerGroup = InlineWorkers(run_config(model), CPU)
    rollouts = random_rollouts()
    said = workers.evaluate_rollouts(rollouts)
    assert isinstance(workers, InlineWorkers)
    metrics = workers.update(random_experience(workers.trainer, rollouts), [], CONTROL, iteration=1, seed=1)
    workers.save(tmp_path / "checkpoint")
    other = InlineWorkers(run_config(model), CPU)
    other.load(tmp_path / "checkpoint")
    assert metrics["update/optimizer_steps"] == 4.0
    assert torch.equal(other.evaluate_rollouts(rollouts).logprobs, workers.evaluate_rollouts(rollouts).logprobs)
    assert not torch.equal(other.evaluate_rollouts(rollouts).logprobs, said.logprobs)
    assert not other.policy_model().training


def test_case_K06_ten_iterations_at_learning_rate_zero_leave_the_engines_mismatch_where_it_was(model):
    """Sampling, evaluation and update in turns, on one policy; what the engine says never moves from the trainer."""
    still = {"learning_rate": 0.0, "warmup_steps": 0}
    workers = InlineWorkers(run_config(model, ppo=ppo(actor=still, critic=still)), CPU)
    requests = [GenerationRequest(tuple(range(5, 7 + i)), seed=i) for i in range(8)]
    found: list[list[Generation]] = []
    mismatches: list[float] = []
    for iteration in range(1, 11):
        generations = workers.generate(requests, Sampling(max_new_tokens=8, temperature=1.0))
        rollouts = rollouts_of(requests, generations)
        said = workers.evaluate_rollouts(rollouts)
        engine = torch.tensor([value for one in generations for value in one.logprobs])
        found.append(generations)
        mismatches.append(float((said.logprobs[rollouts.response_mask] - engine).abs().mean()))
        experience = random_experience(workers.trainer, rollouts, seed=iteration)
        workers.update(experience, [], CONTROL, iteration=iteration, seed=iteration)
    assert all(generations == found[0] for generations in found)
    assert mismatches == [mismatches[0]] * 10
    assert mismatches[0] < 1e-6


def rollouts_of(requests: list[GenerationRequest], generations: list[Generation]) -> RolloutTensors:
    prompts = padded([list(one.prompt_ids) for one in requests], 0, is_left=True)
    return RolloutTensors(*prompts, *padded([list(one.response_ids) for one in generations], 0))


def test_closed_workers_say_so(model):
    workers = InlineWorkers(run_config(model), CPU)
    workers.close()
    with pytest.raises(EngineError, match="closed"):
        workers.policy_model()


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA"), MemoryError("host"), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
)
def test_memory_that_runs_out_is_a_typed_error_with_advice(model, monkeypatch, error):
    workers = InlineWorkers(run_config(model), CPU)

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(workers.trainer.policy.base_model, "forward", fail)
    with pytest.raises(OutOfMemory, match="micro_batch_rollouts"):
        workers.evaluate_rollouts(random_rollouts())


def test_an_evaluation_that_runs_out_of_memory_goes_on_with_half_and_says_the_same(model, monkeypatch):
    workers = InlineWorkers(run_config(model), CPU)
    expected = workers.evaluate_rollouts(random_rollouts())
    body = workers.trainer.policy.base_model
    forward, calls = body.forward, []

    def scarce(*args: object, **settings: object) -> object:
        calls.append(1)
        if len(calls) == 2:  # after the first batch's rows are there
            raise torch.OutOfMemoryError("no room")
        return forward(*args, **settings)

    monkeypatch.setattr(body, "forward", scarce)
    found = workers.evaluate_rollouts(random_rollouts())
    assert workers.trainer.evaluation_batch.size == 2
    assert workers.trainer.update_batch.size == 4
    assert len(calls) == 4
    for name, tensor in vars(expected).items():
        torch.testing.assert_close(vars(found)[name], tensor, rtol=0, atol=1e-5, msg=name)


def test_another_runtime_error_is_passed_on_as_it_is(model, monkeypatch):
    workers = InlineWorkers(run_config(model), CPU)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("shape mismatch")

    monkeypatch.setattr(workers.trainer.policy.base_model, "forward", fail)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        workers.evaluate_rollouts(random_rollouts())
