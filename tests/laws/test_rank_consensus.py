"""Ranks whose own numbers differ decide alike, because they decide on the sum."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_core.engines.protocols import ExperienceTensors
from rlhf_core.engines.torch_trainer import TorchTrainer
from rlhf_core.errors import NumericsError, OutOfMemory
from rlhf_core.numerics.reductions import Ranks
from rlhf_core.update.ppo import PpoUpdate
from tests.rlhf_core.engines.trainer_case import CONTROL, CPU, ppo, random_experience, random_rollouts, run_config
from tests.tiny_model import make_tiny_model

TIMEOUT_SECONDS = 60


class Group:
    """Sums tensors over two threads that each play a rank; a rank that stops early breaks the barrier."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=TIMEOUT_SECONDS)
        self._given: dict[int, torch.Tensor] = {}

    def all_reduce(self, rank: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def reduce(tensor: torch.Tensor) -> torch.Tensor:
            self._given[rank] = tensor.clone()
            self._barrier.wait()
            total = self._given[0] + self._given[1]
            self._barrier.wait()
            return total

        return reduce


class Watched(PpoUpdate):
    """Keeps the KL of this rank's own tokens at each mini-batch."""

    own_kl_nats: list[float]

    def _reduced(self, parts: list[tuple[dict[str, torch.Tensor], float]]) -> dict[str, float]:
        if "update/approx_kl_nats" in parts[0][0]:
            self.own_kl_nats.append(float(sum(part["update/approx_kl_nats"] for part, _ in parts)))
        return super()._reduced(parts)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("consensus") / "model")


def on_two_ranks(
    model: Path,
    *,
    spoil: Callable[[int, ExperienceTensors], None] | None = None,
    harm: Callable[[int, TorchTrainer], None] | None = None,
    **limits: float,
):
    """Each rank's metrics (or error) and own KLs after one update of up to four epochs."""
    group = Group()
    stop = {"max_kl_nats": 1e3, "max_clip_fraction": 1.0, "min_mean_abs_advantage": 0.0} | limits

    optimizer = {"learning_rate": 5e-3, "warmup_steps": 0}
    settings = ppo(actor=optimizer, critic=optimizer, epochs=4, mini_batch_rollouts=8, epoch_stop=stop)
    trainers = [TorchTrainer(run_config(model, ppo=settings), CPU) for _ in range(2)]
    for number, trainer in enumerate(trainers):
        if harm is not None:
            harm(number, trainer)

    def rank(number: int) -> tuple[Any, list[float]]:
        trainer = trainers[number]
        experience = random_experience(trainer, random_rollouts())
        if spoil is not None:
            spoil(number, experience)
        update = Watched(trainer, experience, [], CONTROL, ranks=Ranks(number, 2, group.all_reduce(number)))
        update.own_kl_nats = []
        try:
            return update.run(seed=1), update.own_kl_nats
        except (NumericsError, OutOfMemory) as error:
            return error, update.own_kl_nats

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(rank, range(2)))


def test_case_K03_two_ranks_with_different_local_kl_stop_at_the_same_mini_batch(model):
    (_, first), (_, second) = on_two_ranks(model)
    low, high = sorted((first[1], second[1]))
    assert high > 1.2 * low, "the two ranks' KLs are too close for this test"
    # Both KLs are shares of the mini-batch's: twice the mean of the two lies between twice the one and twice the other.
    (one, _), (two, _) = on_two_ranks(model, max_kl_nats=low + high - 1e-9)
    assert one["update/epochs"] < 4, "nobody stopped"
    assert one["update/epochs"] == two["update/epochs"]
    assert {n for n in one if "stop_" in n} == {n for n in two if "stop_" in n}


def test_a_ratio_that_one_rank_alone_finds_wrong_is_refused_by_both(model):
    def spoil(rank: int, experience: ExperienceTensors) -> None:
        if rank == 1:
            experience.old_logprobs.sub_(0.5)

    for outcome, _ in on_two_ranks(model, spoil=spoil):
        assert isinstance(outcome, NumericsError)


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_by_both(model):
    def spoil(rank: int, experience: ExperienceTensors) -> None:
        if rank == 0:
            experience.advantages.mul_(1e38).mul_(10.0)
            experience.advantages.nan_to_num_(nan=0.0, posinf=3e38, neginf=-3e38)

    (one, _), (two, _) = on_two_ranks(model, spoil=spoil)
    for outcome in (one, two):
        skipped = isinstance(outcome, NumericsError) or outcome["update/skipped_updates"] > 0
        assert skipped
    assert isinstance(one, NumericsError) == isinstance(two, NumericsError)


def test_case_K03_memory_that_runs_out_on_one_rank_alone_halves_both(model):
    calls: list[list[int]] = [[], []]

    def harm(rank: int, trainer: TorchTrainer) -> None:
        original = trainer.response_logprobs

        def response_logprobs(pack: Any, **kwargs: Any) -> Any:
            calls[rank].append(len(pack.lengths))
            # From the second micro-batch of the second try on, when both ranks have gathered gradients.
            if rank == 1 and (len(pack.lengths) > 2 or len(calls[1]) == 3):
                raise torch.OutOfMemoryError("no room")
            return original(pack, **kwargs)

        trainer.response_logprobs = response_logprobs  # type: ignore[method-assign]

    calm = on_two_ranks(model)
    found = on_two_ranks(model, harm=harm)
    assert calls[0] == calls[1] == [4, 2, 2] + [1] * 16
    for (metrics, own_kl), (expected, expected_kl) in zip(found, calm, strict=True):
        assert (metrics["update/micro_batch_rollouts"], metrics["update/out_of_memory_count"]) == (1.0, 2.0)
        assert own_kl == pytest.approx(expected_kl, rel=1e-2, abs=1e-5)
        assert metrics["update/epochs"] == expected["update/epochs"]
        assert metrics["update/policy_loss"] == pytest.approx(expected["update/policy_loss"], rel=1e-2, abs=1e-4)


def test_a_single_rollout_that_does_not_fit_on_one_rank_ends_both(model):
    def harm(rank: int, trainer: TorchTrainer) -> None:
        def response_logprobs(pack: Any, **kwargs: Any) -> Any:
            raise torch.OutOfMemoryError("no room")

        if rank == 0:
            trainer.response_logprobs = response_logprobs  # type: ignore[method-assign]

    assert [type(outcome) for outcome, _ in on_two_ranks(model, harm=harm)] == [OutOfMemory, OutOfMemory]
