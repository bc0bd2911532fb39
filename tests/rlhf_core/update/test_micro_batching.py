"""An update whose memory runs out gives the result of one whose memory suffices (F4)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_core.engines.memory import BatchSize
from rlhf_core.engines.torch_trainer import TorchTrainer
from rlhf_core.errors import OutOfMemory
from rlhf_core.numerics.reductions import identity
from rlhf_core.update.micro_batching import accumulate
from rlhf_core.update.ppo import PpoUpdate
from tests.rlhf_core.engines.trainer_case import (
    CONTROL,
    CPU,
    parameters,
    perturb,
    ppo,
    random_experience,
    random_rollouts,
    run_config,
)
from tests.tiny_model import make_tiny_model

OF_SIZE = {"update/micro_batch_rollouts", "update/out_of_memory_count"}
DOCUMENTS = [[5, 6, 7, 8], [9, 10, 11], [12, 13, 14, 15, 16], [17, 18]] * 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("memory") / "model")


def make_trainer(model: Path, *, with_ptx: bool = False, micro: int = 4) -> TorchTrainer:
    # An epsilon so large that AdamW's step is proportional to the gradient.
    optimizer = {"learning_rate": 1e-1, "warmup_steps": 0, "epsilon": 1.0, "max_grad_norm": 1e9}
    ptx = {"enabled": with_ptx, "documents_per_update": 4}
    settings = ppo(actor=optimizer, critic=optimizer, mini_batch_rollouts=4, micro_batch_rollouts=micro, ptx=ptx)
    data = {"prompts": [{"path": "p.jsonl"}], "ptx": [{"path": "t.txt"}]}
    trainer = TorchTrainer(run_config(model, ppo=settings, data=data), CPU)
    perturb(trainer.critic)
    return trainer


def refuse(trainer: Any, method: str, is_too_much: Callable[[int, int], bool], log: list[int] | None = None) -> None:
    """Let calls with so many sequences (and of that number, from 1) run out of memory."""
    calls, original = [] if log is None else log, getattr(trainer, method)

    def refusing(pack: Any, **kwargs: Any) -> Any:
        calls.append(len(pack.lengths))
        if is_too_much(len(pack.lengths), len(calls)):
            raise torch.OutOfMemoryError("no room")
        return original(pack, **kwargs)

    setattr(trainer, method, refusing)


def updated(trainer: TorchTrainer, experience: Any, *, with_ptx: bool = False) -> dict[str, float]:
    control = CONTROL.model_copy(update={"ptx_coef": 0.5}) if with_ptx else CONTROL
    return PpoUpdate(trainer, experience, DOCUMENTS if with_ptx else [], control).run(seed=3)


def assert_same_result(model: Path, spoil: Callable[[TorchTrainer], None], *, with_ptx: bool = False) -> Any:
    """Update with and without spoiling; return the spoilt update's metrics."""
    calm, scarce = (make_trainer(model, with_ptx=with_ptx) for _ in range(2))
    experience = random_experience(calm, random_rollouts())
    start = parameters(calm.policy)
    spoil(scarce)
    expected = updated(calm, experience, with_ptx=with_ptx)
    found = updated(scarce, experience, with_ptx=with_ptx)
    for one, other in ((calm.policy, scarce.policy), (calm.critic, scarce.critic)):
        for name, parameter in parameters(one).items():
            torch.testing.assert_close(parameters(other)[name], parameter, rtol=0, atol=1e-6, msg=name)
    assert max(float((p - start[n]).abs().max()) for n, p in parameters(calm.policy).items()) > 1e-4
    # Behind equal parameters, equal metrics: nothing of a discarded try was counted.
    for name in expected.keys() - OF_SIZE:
        assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5), name
    assert expected["update/out_of_memory_count"] == 0
    return found


def test_case_C05_out_of_memory_above_two_rollouts_halves_to_two_with_the_same_gradient(model):
    def spoil(trainer: TorchTrainer) -> None:
        for method in ("response_logprobs", "response_values"):
            refuse(trainer, method, lambda size, _: size > 2)

    metrics = assert_same_result(model, spoil)
    assert metrics["update/micro_batch_rollouts"] == 2
    assert metrics["update/out_of_memory_count"] == 1, "the size found stays"


@pytest.mark.parametrize("method", ["response_logprobs", "response_values"])
def test_gradients_gathered_before_memory_ran_out_are_discarded(model, method):
    # Above 2: halve. The 3rd call of 2 rows is the last of its mini-batch, when another one's gradient is there.
    def spoil(trainer: TorchTrainer) -> None:
        refuse(trainer, method, lambda size, call: size > 2 or call == 3)

    metrics = assert_same_result(model, spoil)
    assert metrics["update/micro_batch_rollouts"] == 1
    assert metrics["update/out_of_memory_count"] == 2


def test_memory_that_runs_out_in_the_critics_backward_does_not_repeat_the_actors_step(model):
    steps: list[int] = []

    def spoil(trainer: TorchTrainer) -> None:
        original = trainer.actor_optimizer.step
        trainer.actor_optimizer.step = lambda *args: steps.append(1) or original(*args)  # type: ignore[method-assign]
        values, calls = trainer.response_values, []

        def response_values(pack: Any) -> torch.Tensor:
            calls.append(1)
            found = values(pack)
            if len(calls) == 1:
                found.register_hook(_raise)
            return found

        trainer.response_values = response_values  # type: ignore[method-assign]

    def _raise(gradient: torch.Tensor) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")

    metrics = assert_same_result(model, spoil)
    assert len(steps) == metrics["update/optimizer_steps"] == 4
    assert metrics["update/micro_batch_rollouts"] == 2


def test_pretraining_documents_are_halved_along_and_taken_once(model):
    log: list[int] = []

    def spoil(trainer: TorchTrainer) -> None:
        refuse(trainer, "response_logprobs", lambda _, call: call == 2, log)  # the first step's documents

    metrics = assert_same_result(model, spoil, with_ptx=True)
    assert log[:6] == [4, 4, 2, 2, 2, 2]
    assert metrics["update/micro_batch_rollouts"] == 2


def test_a_single_rollout_that_does_not_fit_is_a_typed_error_and_leaves_the_parameters_as_they_were(model):
    trainer = make_trainer(model)
    experience = random_experience(trainer, random_rollouts())
    before = parameters(trainer.policy), parameters(trainer.critic)
    refuse(trainer, "response_logprobs", lambda size, call: size > 1 or call == 4)
    with pytest.raises(OutOfMemory, match="one row at a time"):
        updated(trainer, experience)
    for model_, kept in zip((trainer.policy, trainer.critic), before, strict=True):
        assert all(torch.equal(p, kept[n]) for n, p in parameters(model_).items())
        assert all(p.grad is None for p in model_.parameters())


def test_another_error_is_passed_on(model):
    with pytest.raises(RuntimeError, match="shape"):
        accumulate(
            lambda size: [lambda: exec("raise RuntimeError('shape')")],
            BatchSize(4),
            discard=lambda: None,
            all_reduce=identity,
            work="a test",
        )
