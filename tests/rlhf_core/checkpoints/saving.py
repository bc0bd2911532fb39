"""Saving real checkpoints of the tiny model, here or in a process that gets killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import torch

from rlhf_core.checkpoints.registry import Registry
from rlhf_core.checkpoints.save import new_reference, save_checkpoint
from rlhf_core.checkpoints.stage import start_policy
from rlhf_core.data.refs import CheckpointRef
from rlhf_core.runtime import Runtime, open_runtime

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__, "transformers", "rlhf_core.workers.inline"])


def save_next(runtime: Runtime, policy: CheckpointRef) -> CheckpointRef:
    """Take one step with both optimizers and save the result."""
    workers: Any = runtime.for_update(policy)
    step = Registry(runtime.folder).state.last_step() + 1
    trainer = workers.trainer
    generator = torch.Generator().manual_seed(step)
    for model, optimizer in ((trainer.policy, trainer.actor_optimizer), (trainer.critic, trainer.critic_optimizer)):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator) * 0.01
        optimizer.step()
    ref = new_reference(runtime, step, policy.control, {"update/policy_loss": 0.5 / step})
    return save_checkpoint(runtime, workers, ref, parent=policy.step, experience_sha256=f"x{step}")


def save_for_ever(run: Path, report: Path) -> None:
    """Save checkpoint after checkpoint; each is reported once it is saved."""
    runtime = open_runtime(run)
    policy = start_policy(runtime)
    with report.open("a", buffering=1) as file:
        file.write(f"{policy.step}\n")
        while True:
            policy = save_next(runtime, policy)
            file.write(f"{policy.step}\n")


def stop_between_look_and_rename(run: Path, said: Any) -> None:
    """Save one more checkpoint, but stop the whole process after the look at the lock file; then tell what happened."""
    runtime = open_runtime(run)
    policy = start_policy(runtime)
    look, lock = runtime.lock.require_ownership, runtime.lock

    def look_and_stop() -> None:
        look()
        lock.require_ownership = look  # type: ignore[method-assign]
        os.kill(os.getpid(), signal.SIGSTOP)

    lock.require_ownership = look_and_stop  # type: ignore[method-assign]
    try:
        save_next(runtime, policy)
        said.send("saved")
    except Exception as error:
        said.send(f"{type(error).__name__}: {error}")


def save_with_little_room(run: Path, bytes_allowed: int, said: Any) -> None:
    """Save one more checkpoint where no file may grow beyond a size."""
    import resource

    runtime = open_runtime(run)
    policy = start_policy(runtime)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_allowed, resource.RLIM_INFINITY))
    try:
        save_next(runtime, policy)
        said.send("saved")
    except Exception as error:
        said.send(f"{type(error).__name__}: {error}")
