"""One rank as a Ray actor: a DeepSpeed trainer in its own process."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import ray
import torch
import torch.distributed as dist
from torch import Tensor

from rlhf_core.config.run import RunConfig
from rlhf_core.numerics.reductions import Ranks
from rlhf_core.seeding import derive_seed, seed_everything
from rlhf_core.workers.rank import Rank


@dataclass(frozen=True)
class Place:
    """Where a rank stands: which one, of how many, and where they meet."""

    number: int
    count: int
    address: str
    port: int


class RankActor:
    """Runs in a Ray worker process. `work` runs on the actor's own thread, `pulse` answers beside it."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._rank: Rank | None = None
        self._steps = 0

    def meeting_point(self) -> tuple[str, int]:
        """This machine's address and a port of it that is free now."""
        address = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((address, 0))
            return address, probe.getsockname()[1]

    def start(self, place: Place) -> int:
        """Join the process group and load the models; returns the window of the policy.

        Raises:
            ConfigError: a model cannot be loaded.
        """
        config = self._config
        torch.set_num_threads(max(1, int(config.cluster.cpus_per_rank)))
        has_gpu = config.compute.device != "cpu" and torch.cuda.is_available()
        device = torch.device("cuda", 0) if has_gpu else torch.device("cpu")
        os.environ |= {
            "RANK": str(place.number),
            "WORLD_SIZE": str(place.count),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": place.address,
            "MASTER_PORT": str(place.port),
        }
        _join(config, place, has_gpu=has_gpu)
        seed_everything(config.seed, deterministic=config.compute.deterministic)
        from rlhf_core.engines.deepspeed_trainer import DeepSpeedTrainer

        trainer = DeepSpeedTrainer(config, device)
        seed = derive_seed(config.seed, "rank", place.number)  # a resumed rank takes its state from the checkpoint
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        self._rank = Rank(trainer, Ranks(place.number, place.count, _sum_over_ranks(device)))
        self._watch(trainer.policy, trainer.critic)
        return self._rank.max_length

    def work(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of this rank. A typed error travels as it is."""
        if self._rank is None:
            raise RuntimeError("the rank was not started")
        return getattr(self._rank, method)(*arguments, **options)

    @ray.method(concurrency_group="beside")
    def pulse(self) -> int:
        """How many forward passes this rank has begun: what stands still is stuck."""
        return self._steps

    def process(self) -> tuple[str, int]:
        """The machine's address and this process's id."""
        return ray.util.get_node_ip_address(), os.getpid()

    def _watch(self, *models: Any) -> None:
        def count(*_: Any) -> None:
            self._steps += 1

        for model in models:
            if model is not None:
                layers = [module for module in model.modules() if not list(module.children())]
                layers[0].register_forward_pre_hook(count)


def _join(config: RunConfig, place: Place, *, has_gpu: bool) -> None:
    import deepspeed

    deepspeed.init_distributed(
        dist_backend="nccl" if has_gpu else "gloo",
        init_method=f"tcp://{place.address}:{place.port}",
        rank=place.number,
        world_size=place.count,
        timeout=timedelta(seconds=config.cluster.collective_seconds),
        verbose=False,
    )


def _sum_over_ranks(device: torch.device) -> Callable[[Tensor], Tensor]:
    def all_reduce(tensor: Tensor) -> Tensor:
        total = tensor.detach().to(device, copy=True)
        dist.all_reduce(total)
        return total

    return all_reduce
