"""Ranks as Ray actors say and do what one process does, at every ZeRO stage, and hand checkpoints to each other."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_core.engines.protocols import GenerationRequest, Sampling, WorkerGroup
from rlhf_core.errors import EngineError, WorkerLost
from rlhf_core.workers.inline import InlineWorkers
from rlhf_core.workers.local_ray import disconnect
from rlhf_core.workers.ray_group import RayWorkers
from tests.rlhf_core.engines.trainer_case import CONTROL, CPU, learnt_from, ppo, random_rollouts, run_config
from tests.tiny_model import make_tiny_model

UPDATES = 3
RELATIVE = 1e-5
"""Float32, summed in another order by two ranks; a single rank has the order of one process."""
OWN = ("update/padded_fraction", "update/ratio_first_deviation")
"""What a rank itself computed, and rounding noise."""
DOCUMENTS = [[3, 5, 7, 9, 2], [4, 4, 8], [6, 1, 1, 2, 9, 9]] * 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory):
    yield make_tiny_model(tmp_path_factory.mktemp("ray") / "model")
    disconnect()


def settings(model: Path, **cluster: Any):
    # An epsilon above the rounding of gradients: Adam would blow up noise where a gradient is almost 0.
    optimizer = {"learning_rate": 3e-3, "warmup_steps": 0, "epsilon": 1e-3}
    changes = {"cluster": {"engine": "ray", **cluster}} if cluster else {}
    return run_config(
        model,
        data={"prompts": [{"path": "prompts.jsonl"}], "ptx": [{"path": "ptx.jsonl"}]},
        ppo=ppo(
            actor=optimizer,
            critic=optimizer,
            mini_batch_rollouts=3,
            micro_batch_rollouts=1,
            ptx={"enabled": True, "documents_per_update": 3, "max_tokens": 8},
        ),
        **changes,
    )


def train(workers: WorkerGroup) -> list[dict[str, float]]:
    """Metrics of three updates on the same rollouts; with 3 rows a rank has none in its second pass."""
    rollouts, found = random_rollouts(), []
    for number in range(1, UPDATES + 1):
        said = workers.evaluate_rollouts(rollouts)
        draw, mask = torch.Generator().manual_seed(number), rollouts.response_mask
        advantages, returns = (torch.zeros(mask.shape) for _ in range(2))
        advantages[mask], returns[mask] = torch.randn(2, int(mask.sum()), generator=draw)
        experience = learnt_from(rollouts, said, advantages, returns)
        control = CONTROL.model_copy(update={"ptx_coef": 0.1})
        metrics = workers.update(experience, DOCUMENTS, control, iteration=number, seed=number)
        kl = {"kl": float(said.kl_exact_nats.sum()), "values": float(said.values.sum())}
        found.append(metrics | kl)
    return found


def sample(workers: WorkerGroup) -> list[tuple[int, ...]]:
    requests = [GenerationRequest((1, 2, 3 + seed % 2), seed) for seed in range(7)]
    return [generation.response_ids for generation in workers.generate(requests, Sampling(8, 1.0))]


def likelihoods(workers: WorkerGroup) -> list[float]:
    pairs = [((1, 2), (3, 4)), ((1, 2), (5,)), ((7,), (5, 6, 7))]
    advanced: list[int] = []
    found = workers.loglikelihoods(pairs, batch_size=2, advance=advanced.append)
    assert sum(advanced) == len(pairs)
    return [value for value, _ in found]


@pytest.fixture(scope="module")
def alone(model, tmp_path_factory):
    """What one process does: metrics, responses, likelihoods, and its checkpoint."""
    workers = InlineWorkers(settings(model), CPU)
    metrics = train(workers)
    folder = tmp_path_factory.mktemp("alone") / "checkpoint"
    workers.save(folder)
    return metrics, sample(workers), likelihoods(workers), folder


def same(found: list[dict[str, float]], expected: list[dict[str, float]], *, relative: float) -> None:
    for got, want in zip(found, expected, strict=True):
        assert got.keys() == want.keys()
        for name in want.keys() - set(OWN):
            assert got[name] == pytest.approx(want[name], rel=relative, abs=relative / 10), name


@pytest.mark.parametrize(
    ("ranks", "zero_stage", "offload"),
    [
        (1, 0, False),
        pytest.param(2, 0, False, marks=pytest.mark.long_fault),
        pytest.param(2, 1, True, marks=pytest.mark.long_fault),
        (2, 2, False),
        pytest.param(2, 3, False, marks=pytest.mark.long_fault),
        pytest.param(2, 3, True, marks=pytest.mark.long_fault),
    ],
)
@pytest.mark.faults("resumed by another number of ranks, both ways")
def test_ranks_give_the_numbers_and_responses_of_one_process(model, alone, tmp_path, ranks, zero_stage, offload):
    metrics, responses, scores, checkpoint = alone
    workers = RayWorkers(settings(model, ranks=ranks, zero_stage=zero_stage, offload_optimizer=offload))
    try:
        same(train(workers), metrics, relative=1e-12 if ranks == 1 else RELATIVE)
        assert sample(workers) == responses
        assert likelihoods(workers) == pytest.approx(scores, abs=1e-5)
        # Their checkpoint goes on alone, and one process's goes on here: weights, moments, schedule.
        workers.save(tmp_path / "ranks")
        other = InlineWorkers(settings(model), CPU)
        other.load(tmp_path / "ranks")
        assert other.micro_inference() == pytest.approx(workers.micro_inference(), abs=1e-6)
        workers.load(checkpoint)
        same(train(workers), train(other), relative=10 * RELATIVE)
    finally:
        workers.close()
    with pytest.raises(EngineError, match="ended"):
        workers.micro_inference()


@pytest.mark.long_fault
@pytest.mark.faults("bfloat16 at ZeRO 3")
def test_ranks_that_gather_their_parameters_train_under_autocast(model):
    """Projections under autocast read their weight again in the backward pass, when ZeRO 3 has scattered it once."""
    config = settings(model, ranks=2, zero_stage=3)
    config = config.model_copy(update={"model": config.model.model_copy(update={"autocast": "bfloat16"})})
    alone = train(InlineWorkers(config, CPU))
    workers = RayWorkers(config)
    try:
        found = train(workers)
    finally:
        workers.close()
    for name in ("update/policy_loss", "update/value_loss", "update/actor_grad_norm", "kl"):
        assert [step[name] for step in found] == pytest.approx([step[name] for step in alone], rel=0.05, abs=1e-3), name


@pytest.mark.faults("SIGKILL of one rank of two (C07)")
def test_case_C07_a_rank_that_dies_ends_the_group_within_seconds_and_leaves_no_process(model):
    workers = RayWorkers(settings(model, ranks=2, zero_stage=1))
    pids = [pid for _, pid in workers.processes()]
    rollouts = random_rollouts()
    workers.evaluate_rollouts(rollouts)
    os.kill(pids[1], signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(WorkerLost, match="one of 2 training ranks is gone"):
        train(workers)
    assert time.monotonic() - started < 10
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    with pytest.raises(EngineError, match="ended"):
        workers.evaluate_rollouts(rollouts)


def test_an_error_of_a_rank_comes_back_as_it_was_raised(model):
    workers = RayWorkers(settings(model, ranks=1))
    try:
        with pytest.raises(Exception, match="empty prompt") as caught:
            workers.generate([GenerationRequest((), 1)], Sampling(4, 1.0))
        assert type(caught.value).__name__ == "DataError"
    finally:
        workers.close()
