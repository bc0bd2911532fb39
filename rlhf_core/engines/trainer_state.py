"""A trainer's whole state in a folder, and back: weights, optimizers, schedules and random states (F1, C01, C06).

Safetensors and JSON alone: nothing is unpickled (F7). Everything is read and checked before anything is changed.
Weights and moments are stored whole and by name, so that any number of ranks, at any ZeRO stage, can go on from them;
of random states each rank has its own file, and a rank that is new starts from its seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlhf_core.engines.optimizer import ScheduledOptimizer
from rlhf_core.engines.torch_trainer import TorchTrainer
from rlhf_core.errors import CheckpointError, ConfigError
from rlhf_core.models.loading import load_critic, load_policy
from rlhf_core.numerics.reductions import SOLO, Ranks
from rlhf_core.numerics.running_stats import RunningStats

_STATE = "state.json"
FORMAT = "trainer-2"


def save_trainer(
    trainer: TorchTrainer, folder: Path, ranks: Ranks = SOLO, done: Callable[[Path], None] = lambda path: None
) -> None:
    """Write `policy/`, `critic/` and `trainer/` into `folder`; called by all ranks, rank 0 writes what is shared.

    `done` is told each large file once it is whole.
    """
    rank = folder / "trainer"
    rank.mkdir(parents=True, exist_ok=True)
    with trainer.whole():
        if ranks.number == 0:
            trainer.policy.save_pretrained(folder / "policy")
            trainer.tokenizer.save_pretrained(folder / "policy")
            _report(folder / "policy", done)
            if trainer.critic is not None:
                trainer.critic.save(folder / "critic")
                _report(folder / "critic", done)
    counters: dict[str, dict[str, int | None]] = {}
    for name, optimizer in _optimizers(trainer).items():
        moments = optimizer.moments()
        if ranks.number == 0:
            save_file({key: t.detach().cpu().contiguous() for key, t in moments.items()}, rank / f"{name}.safetensors")
            done(rank / f"{name}.safetensors")
        counters[name] = {
            "steps": optimizer.steps,
            "skipped_in_row": optimizer.skipped_in_row,
            "stalled_since": optimizer.stalled_since,
        }
    save_file(_torch_random_states(), rank / _random_file(ranks.number))
    (rank / _other_random_file(ranks.number)).write_text(json.dumps(_other_random_states(), sort_keys=True) + "\n")
    if ranks.number == 0:
        state = {
            "format": FORMAT,
            "world_size": ranks.count,
            "optimizers": counters,
            "value_stats": trainer.value_stats.state_dict(),
        }
        (rank / _STATE).write_text(json.dumps(state, indent=1, sort_keys=True) + "\n")


def _report(folder: Path, done: Callable[[Path], None]) -> None:
    for path in folder.iterdir():
        done(path)


def _random_file(rank: int) -> str:
    return f"random-{rank:05d}.safetensors"


def _other_random_file(rank: int) -> str:
    return f"random-{rank:05d}.json"


def load_trainer(trainer: TorchTrainer, folder: Path, ranks: Ranks = SOLO) -> None:
    """Take the state that `save_trainer` wrote.

    Raises:
        CheckpointError: a file is missing, unreadable, or belongs to another model; the trainer is unchanged.
    """
    rank = folder / "trainer"
    state = _read_state(rank / _STATE)
    moments = {name: _read_tensors(rank / f"{name}.safetensors") for name in _optimizers(trainer)}
    for name, optimizer in _optimizers(trainer).items():
        optimizer.require_fitting(moments[name], str(rank / f"{name}.safetensors"))
        _require_same_steps(moments[name], state["optimizers"][name]["steps"], rank / f"{name}.safetensors")
    random_states = _read_random_states(rank, ranks.number, state["world_size"])
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
    with trainer.whole(modify=True):
        for model, stored, _ in loaded:
            _copy_weights(model, stored)
    for name, optimizer in _optimizers(trainer).items():
        optimizer.restore(moments[name], **state["optimizers"][name])
    trainer.value_stats = RunningStats.from_state_dict(state["value_stats"])
    if random_states is not None:
        _restore_random_states(*random_states)


def _read_random_states(folder: Path, rank: int, world_size: int) -> tuple[Mapping[str, Any], dict[str, Tensor]] | None:
    """This rank's; None for a rank that the run that saved did not have."""
    if rank >= world_size:
        return None
    return _read_json(folder / _other_random_file(rank)), _read_tensors(folder / _random_file(rank))


def _optimizers(trainer: TorchTrainer) -> dict[str, ScheduledOptimizer]:
    optimizers: dict[str, ScheduledOptimizer] = {"actor_optimizer": trainer.actor_optimizer}
    if trainer.critic_optimizer is not None:
        optimizers["critic_optimizer"] = trainer.critic_optimizer
    return optimizers


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}. Go on from an earlier checkpoint.") from error


def _read_state(path: Path) -> dict[str, Any]:
    state = _read_json(path)
    if state.get("format") != FORMAT or not isinstance(state.get("world_size"), int):
        raise CheckpointError(
            f"{path}: expected format {FORMAT!r} and a number of ranks, found format {state.get('format')!r} and "
            f"{state.get('world_size')!r} ranks. Resume with the version of this project that wrote it."
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
    expected, found = (
        {name: tuple(getattr(p, "ds_shape", p.shape)) for name, p in m.named_parameters()} for m in (model, stored)
    )
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
