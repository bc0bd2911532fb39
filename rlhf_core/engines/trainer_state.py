"""A trainer's whole state in a folder, and back: weights, optimizers, schedules and random states (F1, C01, C06).

Safetensors and JSON alone: nothing is unpickled (F7). Everything is read and checked before anything is changed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlhf_core.engines.optimizer import ScheduledAdamW
from rlhf_core.engines.torch_trainer import TorchTrainer
from rlhf_core.errors import CheckpointError, ConfigError
from rlhf_core.models.loading import load_critic, load_policy
from rlhf_core.numerics.running_stats import RunningStats

_STATE = "state.json"
_FORMAT = "torch-trainer-1"
_RANDOM = "random.safetensors"


def save_trainer(trainer: TorchTrainer, folder: Path) -> None:
    """Write `policy/`, `critic/` and `trainer/` into `folder`."""
    trainer.policy.save_pretrained(folder / "policy")
    trainer.tokenizer.save_pretrained(folder / "policy")
    if trainer.critic is not None:
        trainer.critic.save(folder / "critic")
    rank = folder / "trainer"
    rank.mkdir(parents=True, exist_ok=True)
    counters: dict[str, dict[str, int | None]] = {}
    for name, optimizer in _optimizers(trainer).items():
        tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in optimizer.moments().items()}
        save_file(tensors, rank / f"{name}.safetensors")
        counters[name] = {
            "steps": optimizer.steps,
            "skipped_in_row": optimizer.skipped_in_row,
            "stalled_since": optimizer.stalled_since,
        }
    save_file(_torch_random_states(), rank / _RANDOM)
    state = {
        "format": _FORMAT,
        "world_size": 1,
        "optimizers": counters,
        "value_stats": trainer.value_stats.state_dict(),
        **_other_random_states(),
    }
    (rank / _STATE).write_text(json.dumps(state, indent=1, sort_keys=True) + "\n")


def load_trainer(trainer: TorchTrainer, folder: Path) -> None:
    """Take the state that `save_trainer` wrote.

    Raises:
        CheckpointError: a file is missing, unreadable, or belongs to another model or number of ranks; the trainer is
            unchanged.
    """
    rank = folder / "trainer"
    state = _read_state(rank / _STATE)
    moments = {name: _read_tensors(rank / f"{name}.safetensors") for name in _optimizers(trainer)}
    for name, optimizer in _optimizers(trainer).items():
        optimizer.require_fitting(moments[name], str(rank / f"{name}.safetensors"))
        _require_same_steps(moments[name], state["optimizers"][name]["steps"], rank / f"{name}.safetensors")
    random_states = _read_tensors(rank / _RANDOM)
    config, cpu = trainer.config.model, torch.device("cpu")
    try:
        loaded: list[tuple[nn.Module, nn.Module, str]] = [
            (trainer.policy, load_policy(folder / "policy", config, cpu), "policy")
        ]
        if trainer.critic is not None:
            loaded.append((trainer.critic, load_critic(folder / "critic", config, cpu), "critic"))
    except ConfigError as error:
        raise CheckpointError(f"{folder} holds no whole model: {error}") from error
    for model, stored, name in loaded:
        _require_same_shapes(model, stored, folder / name)
    for model, stored, _ in loaded:
        _copy_weights(model, stored)
    for name, optimizer in _optimizers(trainer).items():
        optimizer.restore(moments[name], **state["optimizers"][name])
    trainer.value_stats = RunningStats.from_state_dict(state["value_stats"])
    _restore_random_states(state, random_states)


def _optimizers(trainer: TorchTrainer) -> dict[str, ScheduledAdamW]:
    optimizers = {"actor_optimizer": trainer.actor_optimizer}
    if trainer.critic_optimizer is not None:
        optimizers["critic_optimizer"] = trainer.critic_optimizer
    return optimizers


def _read_state(path: Path) -> dict[str, Any]:
    try:
        state = cast("dict[str, Any]", json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}. Go on from an earlier checkpoint.") from error
    found = (state.get("format"), state.get("world_size"))
    if found != (_FORMAT, 1):
        raise CheckpointError(
            f"{path}: expected format {_FORMAT!r} and 1 rank, found format {found[0]!r} and {found[1]} ranks. "
            "Resume with the engine and the number of ranks that wrote it."
        )
    return state


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}. Expected a safetensors file; go on from an earlier checkpoint."
        ) from error


def _require_same_steps(moments: Mapping[str, Tensor], steps: int, path: Path) -> None:
    counts = {int(tensor) for key, tensor in moments.items() if key.endswith("/step")}
    if max(counts, default=0) != steps:
        raise CheckpointError(
            f"{path} ends at optimizer step {max(counts, default=0)}, expected {steps} as {_STATE} says. "
            "The files are of different checkpoints; go on from an earlier one."
        )


def _require_same_shapes(model: nn.Module, stored: nn.Module, path: Path) -> None:
    expected, found = ({name: tuple(p.shape) for name, p in m.named_parameters()} for m in (model, stored))
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise CheckpointError(
                f"{path}: parameter {name} has shape {found.get(name)}, expected {expected.get(name)}. "
                "The checkpoint is of another model; resume with the configuration that wrote it."
            )


@torch.no_grad()
def _copy_weights(model: nn.Module, stored: nn.Module) -> None:
    for target, source in zip(model.parameters(), stored.parameters(), strict=True):
        target.copy_(source)


def _torch_random_states() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda:{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def _other_random_states() -> dict[str, Any]:
    kind, keys, position, has_gauss, gauss = cast("tuple[Any, ...]", np.random.get_state())
    return {"python": random.getstate(), "numpy": [kind, keys.tolist(), position, has_gauss, gauss]}


def _restore_random_states(state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(tensors["cpu"])
    for name, tensor in tensors.items():
        index = int(name.partition(":")[2] or -1)
        if 0 <= index < torch.cuda.device_count():
            torch.cuda.set_rng_state(tensor, index)
