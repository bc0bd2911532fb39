"""From a YAML file (or a preset's name) and overrides to a checked `RunConfig`."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rlhf_core.config.run import RunConfig
from rlhf_core.errors import ConfigError


def presets() -> dict[str, Path]:
    """Name → file of the configurations that come with the project."""
    folder = Path(str(files("deployments"))) / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load_config(source: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a configuration.

    Args:
        source: path of a YAML file, or the name of a preset such as `quickstart`.
        overrides: `dotted.key=value`, the value written as in YAML; later ones win.

    Raises:
        ConfigError: names the file, the field, the value found and what would be right.
    """
    path = _find(source)
    settings = _read_mapping(path)
    for override in overrides:
        _apply_override(settings, override)
    settings = _choose_hub(settings, local=_has_root(settings))
    try:
        return RunConfig.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(_explain(error, settings, path)) from error


def dump_config(config: RunConfig) -> str:
    """The resolved configuration as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def config_hash(config: BaseModel) -> str:
    """SHA-256 of a configuration's values."""
    return hashlib.sha256(json.dumps(config.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def _has_root(settings: Mapping[str, Any]) -> bool:
    data = settings.get("data")
    return isinstance(data, dict) and data.get("root") is not None


def _choose_hub(value: Any, *, local: bool) -> Any:
    """Take a mapping's hub alternative, `or_hub`, where no `data.root` says that files are local."""
    if isinstance(value, list):
        return [_choose_hub(item, local=local) for item in value]
    if not isinstance(value, dict):
        return value
    mapping = cast(dict[str, Any], value)
    if "or_hub" in mapping and not local:
        return mapping["or_hub"]
    return {key: _choose_hub(item, local=local) for key, item in mapping.items() if key != "or_hub"}


def _find(source: str | Path) -> Path:
    path = Path(source)
    if path.is_file():
        return path
    known = presets()
    if str(source) in known:
        return known[str(source)]
    raise ConfigError(
        f"no configuration {str(source)!r}: it is neither a file (looked at {path.absolute()}) nor a preset. "
        f"Presets: {', '.join(known) or 'none'}."
    )


def _read_mapping(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Give a UTF-8 YAML file.") from error
    if not isinstance(content, dict):
        found = "nothing" if content is None else f"a {type(content).__name__}"
        raise ConfigError(f"{path} must hold a mapping of settings, but holds {found}.")
    return cast(dict[str, Any], content)


def _apply_override(settings: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise ConfigError(
            f"override {override!r} is not of the form dotted.key=value, e.g. ppo.actor.learning_rate=5e-7."
        )
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: the value is not valid YAML: {error}") from error
    value = _number(value)
    *parents, last = key.strip().split(".")
    place: Any = settings
    for name in parents:
        place = _step(place, name, override)
    if isinstance(place, list):
        place[_index(place, last, override)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise ConfigError(f"override {override!r}: {last!r} lies below a plain value, {place!r}.")


def _number(value: Any) -> Any:
    """YAML 1.1 reads 5e-7 as text; a person means the number."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _step(place: Any, name: str, override: str) -> Any:
    if isinstance(place, list):
        return place[_index(place, name, override)]
    if not isinstance(place, dict):
        raise ConfigError(f"override {override!r}: {name!r} lies below a plain value, {place!r}.")
    return cast(dict[str, Any], place).setdefault(name, {})


def _index(place: list[Any], name: str, override: str) -> int:
    if not name.isdigit() or int(name) >= len(place):
        raise ConfigError(f"override {override!r}: {name!r} must be an index from 0 to {len(place) - 1}.")
    return int(name)


def _explain(error: ValidationError, settings: Mapping[str, Any], path: Path) -> str:
    places = [fault["loc"] for fault in error.errors()]
    faults = [
        fault
        for fault in error.errors()
        if not any(len(p) > len(fault["loc"]) and p[: len(fault["loc"])] == fault["loc"] for p in places)
    ]
    lines = [f"{path} has {len(faults)} wrong setting(s):"]
    for fault in faults:
        where = ".".join(str(part) for part in fault["loc"]) or "(whole file)"
        if fault["type"] == "extra_forbidden":
            lines.append(f"  {where}: unknown key{_suggestion(fault['loc'])}")
        elif fault["type"] == "missing":
            lines.append(f"  {where}: missing; it has no default, so give it a value")
        elif fault["type"] == "value_error":
            lines.append(f"  {where}: {fault['ctx']['error']}" if "ctx" in fault else f"  {where}: {fault['msg']}")
        else:
            lines.append(f"  {where}: {fault['msg']}; found {_shown(fault)}{_meaning(fault['loc'])}")
    return "\n".join(lines)


def _shown(fault: ErrorDetails) -> str:
    """The wrong value; an address put where the name of its place belongs is a secret."""
    if fault["loc"][:1] == ("notifications",) and "://" in str(fault["input"]):
        return "an address. Put it into an environment variable or a Prefect Secret block, and give that one's name"
    return repr(fault["input"])


def _model_at(location: Sequence[int | str]) -> type[BaseModel] | None:
    """The configuration model that holds the field at `location`."""
    model: Any = RunConfig
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        if field is None:
            return None
        model = next((kind for kind in _kinds(field.annotation) if issubclass(kind, BaseModel)), None)
        if model is None:
            return None
    return model


def _kinds(annotation: Any) -> list[type[Any]]:
    if isinstance(annotation, type) and not getattr(annotation, "__args__", None):
        return [annotation]
    return [kind for part in getattr(annotation, "__args__", ()) for kind in _kinds(part)]


def _suggestion(location: Sequence[int | str]) -> str:
    model = _model_at(location)
    if model is None:
        return ""
    names = list(model.model_fields)
    close = difflib.get_close_matches(str(location[-1]), names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known here: {', '.join(names)}"


def _meaning(location: Sequence[int | str]) -> str:
    model = _model_at(location)
    field = model.model_fields.get(str(location[-1])) if model else None
    return f" ({field.description})" if field is not None and field.description else ""
