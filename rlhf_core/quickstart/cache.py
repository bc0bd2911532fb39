"""The quickstart's world and model on disk, made once for each seed, settings and version of this package."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import transformers

from rlhf_core.quickstart.base_model import BaseModelSettings, train_base_model
from rlhf_core.quickstart.world import World, WorldSettings

KEY_FILE = "key.json"
# The modules that decide what the folder holds.
CONTENT_MODULES = ("facts", "grammar", "preference", "items", "tokenizer", "world", "base_model")


@dataclass(frozen=True)
class QuickstartSettings:
    """Everything beside the seed that decides what the folder holds."""

    world: WorldSettings = field(default_factory=WorldSettings)
    model: BaseModelSettings = field(default_factory=BaseModelSettings)


@dataclass(frozen=True)
class QuickstartWorld:
    """A finished folder: `data` holds the files, `model` is a Hugging Face folder with its tokenizer."""

    root: Path
    data: Path
    model: Path


def ensure_quickstart_world(
    cache_dir: Path, *, seed: int = 0, echo: bool = True, settings: QuickstartSettings | None = None
) -> QuickstartWorld:
    """Return the world of a seed, making it where the cache lacks it; the folder appears whole or not at all."""
    settings = settings or QuickstartSettings()
    root = cache_dir / f"quickstart-{content_key(seed, settings)}"
    if not (root / KEY_FILE).is_file():
        cache_dir.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=cache_dir))
        try:
            _make(beside, seed, settings, echo=echo)
            _publish(beside, root)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return QuickstartWorld(root, root / "data", root / "model")


def content_key(seed: int, settings: QuickstartSettings) -> str:
    """A short hash of the seed, the settings, the modules that write, and the libraries that decide the weights."""
    digest = hashlib.sha256(json.dumps(_identity(seed, settings), sort_keys=True).encode())
    for module in CONTENT_MODULES:
        digest.update(Path(__file__).with_name(f"{module}.py").read_bytes())
    return digest.hexdigest()[:16]


def _identity(seed: int, settings: QuickstartSettings) -> dict[str, object]:
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return {"seed": seed, "settings": asdict(settings), "versions": versions}


def _make(folder: Path, seed: int, settings: QuickstartSettings, *, echo: bool) -> None:
    world = World(settings.world, seed)
    (folder / "data").mkdir()
    world.write(folder / "data")
    (folder / "model").mkdir()
    train_base_model(world, settings.model, folder / "model", echo=echo)
    (folder / KEY_FILE).write_text(json.dumps(_identity(seed, settings), indent=2) + "\n", encoding="utf-8")


def _publish(beside: Path, root: Path) -> None:
    """Move the finished folder to its name; where another process was first, its equal folder stands."""
    beside.chmod(0o755)
    try:
        os.rename(beside, root)
    except OSError:
        if not (root / KEY_FILE).is_file():
            raise
