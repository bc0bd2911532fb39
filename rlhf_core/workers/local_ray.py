"""A Ray cluster: the one at the given address, or one that this process starts for itself."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import ray
import torch
from ray.util.placement_group import placement_group

from rlhf_core.config.run import RunConfig
from rlhf_core.errors import ConfigError, EngineError
from rlhf_core.workers import ray_guardian

_guardians: list[subprocess.Popen[bytes]] = []
"""The one of this process, while it has a local Ray."""


def connect(config: RunConfig) -> None:
    """Join the cluster, or start a local one with as many cores as the ranks reserve; again does nothing.

    Raises:
        EngineError: no cluster answers at the address.
    """
    if ray.is_initialized():
        return
    cluster = config.cluster
    # Ray's coming default: whoever reserves no GPU, as this process, keeps the GPUs that it sees.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    options: dict[str, Any] = {"address": cluster.address}
    if cluster.address is None:
        options = {
            "num_cpus": max(os.cpu_count() or 1, math.ceil(cluster.ranks * cluster.cpus_per_rank)),
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
        }
    try:
        with _own_answer_to_sigterm():
            if cluster.address is None:
                _guard()
            ray.init(**options, log_to_driver=False, logging_level=logging.WARNING, configure_logging=False)
    except Exception as error:  # Ray raises a bare one where its processes come up too late
        disconnect()
        where = "a local Ray could not be started" if cluster.address is None else f"no Ray at {cluster.address}"
        raise EngineError(
            f"{where}: {error}. Start one (`ray start --head`) and give cluster.address, or leave that out: a local "
            "one is started."
        ) from error


def reserve(config: RunConfig) -> Any:
    """Cores and GPUs for all ranks at once, packed or spread over the machines.

    Raises:
        ConfigError: a local Ray has too little for them.
        EngineError: a cluster has, within `cluster.start_seconds`; a retry may find a machine back.
    """
    cluster = config.cluster
    gpus = cluster.gpus_per_rank
    if gpus is None:
        gpus = 1.0 if config.compute.device != "cpu" and _has_gpus() else 0.0
    bundle = {"CPU": cluster.cpus_per_rank} | ({"GPU": gpus} if gpus else {})
    group = placement_group([dict(bundle) for _ in range(cluster.ranks)], strategy=cluster.placement.upper())
    if not group.wait(timeout_seconds=cluster.start_seconds):
        ray.util.remove_placement_group(group)
        # Of a cluster a machine may be missing that comes back; a local Ray never has more.
        kind = ConfigError if cluster.address is None else EngineError
        raise kind(
            f"cluster: {cluster.ranks} ranks of {bundle} do not fit; Ray has {_available()}. Lower cluster.ranks, "
            "cpus_per_rank or gpus_per_rank, or add machines."
        )
    return group


def disconnect() -> None:
    """Leave the cluster; a local one ends."""
    ray.shutdown()
    while _guardians:
        guardian = _guardians.pop()
        guardian.terminate()
        guardian.wait()


def _guard() -> None:
    if not _guardians:
        _guardians.append(ray_guardian.start())


@contextmanager
def _own_answer_to_sigterm() -> Generator[None]:
    """Undo that Ray takes SIGTERM for itself.

    Ray ends its processes first and then this one, so that what closes the run in order would wait for a dead cluster.
    Without its answer the run is closed while Ray lives, or this process ends at once, and Ray's processes with it.
    """
    answer = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and answer is not None:
            signal.signal(signal.SIGTERM, answer)


def _has_gpus() -> bool:
    return torch.cuda.is_available() or ray.cluster_resources().get("GPU", 0) > 0


def _available() -> dict[str, float]:
    return {name: amount for name, amount in ray.cluster_resources().items() if name in ("CPU", "GPU")}
