"""Whether a checkpoint's optimizer files belong to its models: names and shapes, from the files' headers (C06)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError, safe_open

from rlhf_core.data.store import read_json
from rlhf_core.engines.trainer_state import FORMAT
from rlhf_core.errors import CheckpointError, DataError
from rlhf_core.models.heads import VALUE_HEAD

_MODELS = {"actor_optimizer": "policy", "critic_optimizer": "critic"}


def require_matching_optimizers(folder: Path) -> None:
    """Compare each moment's shape with that of the parameter it belongs to.

    Raises:
        CheckpointError: a file is missing or unreadable, a moment is of another model or shape, or moments are missing
            though the optimizer has taken steps: it would begin anew.
    """
    path = folder / "trainer" / "state.json"
    try:
        state = read_json(path)
    except DataError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if state.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {state.get('format')!r}; expected {FORMAT!r}.")
    for name, facts in state["optimizers"].items():
        file = folder / "trainer" / f"{name}.safetensors"
        moments = _shapes(file)
        if facts["steps"] and not moments:
            raise CheckpointError(
                f"{file} holds no moments, but {path.name} says that the optimizer has taken {facts['steps']} steps."
            )
        weights = _model_shapes(folder / _MODELS[name])
        for key, shape in moments.items():
            parameter, _, moment = key.rpartition("/")
            expected = () if moment == "step" else weights.get(parameter)
            if shape != expected:
                raise CheckpointError(
                    f"{file}: {key} has shape {shape}, the {_MODELS[name]} beside it "
                    f"{'has no such parameter' if expected is None else f'needs {expected}'}. "
                    "The file is of another model or checkpoint."
                )


def _model_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of a model's parameters by their names in the trainer; those of sharded models too."""
    found: dict[str, tuple[int, ...]] = {}
    is_critic = (folder / VALUE_HEAD).is_file()
    for path in sorted(folder.glob("*.safetensors")):
        for name, shape in _shapes(path).items():
            found[_name_in_trainer(name, is_critic=is_critic, is_head=path.name == VALUE_HEAD)] = shape
    return found


def _name_in_trainer(name: str, *, is_critic: bool, is_head: bool) -> str:
    """A critic's body and heads are saved without the names that they have in it."""
    if is_head:
        return name if name.startswith("context.") else f"head.{name}"
    return f"body.{name}" if is_critic else name


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        with cast(Any, safe_open(path, framework="pt")) as file:
            return {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}. Expected a safetensors file.") from error
