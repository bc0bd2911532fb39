"""A checkpoint's policy as a plain Hugging Face folder that stands alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from rlhf_core.checkpoints.manifest import require_whole
from rlhf_core.checkpoints.records import Entry, read_registry
from rlhf_core.checkpoints.verify import STATE, micro_inference
from rlhf_core.config.run import RunConfig
from rlhf_core.data.store import RunFolder, disk_errors, file_sha256, fsync_path, read_json, write_bytes
from rlhf_core.errors import CheckpointError, RunFolderError
from rlhf_core.models.loading import load_policy, load_tokenizer

CARD = "README.md"
_TOLERANCE_NATS = 1e-3


def export_policy(folder: RunFolder, config: RunConfig, which: str, into: Path) -> Path:
    """Copy the policy and its tokenizer of a checkpoint, with a model card, and see that the copy says the same.

    Args:
        folder: of the run; it may be at work.
        config: of the run.
        which: `best`, `current` or a step's number.
        into: a folder that does not exist or is empty.

    Raises:
        CheckpointError: there is no such checkpoint, or it is damaged.
        RunFolderError: `into` holds something, or cannot be written.
    """
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise RunFolderError(f"{into} is not empty. Give a folder that does not exist yet, or an empty one.")
    entry = _chosen(folder, which)
    require_whole(entry.ref.path, manifest_sha256=entry.manifest_sha256)
    source = entry.ref.path / "policy"
    partial = into.absolute().with_name(f".{into.name}.partial")
    with disk_errors(into):
        shutil.rmtree(partial, ignore_errors=True)
        try:
            shutil.copytree(source, partial)
            write_bytes(partial / CARD, _card(folder, entry).encode())
            _require_same(source, partial)
            for path in [*partial.rglob("*"), partial]:
                fsync_path(path)
            _require_speaking(partial, entry, config)
            if into.exists():
                into.rmdir()
            partial.rename(into)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        fsync_path(into.absolute().parent)
    return into


def _chosen(folder: RunFolder, which: str) -> Entry:
    state = read_registry(folder)
    current = None if state.current is None else state.current.step
    step = {"best": state.best, "current": current}.get(which, int(which) if which.isdigit() else None)
    entry = None if step is None else state.checkpoints.get(step)
    if entry is None or entry.status in ("pruned", "damaged"):
        there = sorted(n for n, e in state.checkpoints.items() if e.status not in ("pruned", "damaged"))
        found = "not there" if entry is None else entry.status
        raise CheckpointError(
            f"checkpoint {which} of {folder.path} is {found}. Give `best`, `current` or one of {there or 'none'}."
        )
    return entry


def _require_same(source: Path, copy: Path) -> None:
    for path in (path for path in source.rglob("*") if path.is_file()):
        if file_sha256(copy / path.relative_to(source)) != file_sha256(path):
            raise CheckpointError(f"{copy / path.relative_to(source)} is not what was copied from {path}. Try again.")


def _require_speaking(copy: Path, entry: Entry, config: RunConfig) -> None:
    """Load the copy as a user would, and compare its log-probs with those recorded when it was saved."""
    model = config.model.model_copy(update={"policy": str(copy), "revision": None})
    load_tokenizer(model)
    found = micro_inference(load_policy(copy, model, torch.device("cpu")))
    recorded = read_json(entry.ref.path / STATE)["micro_inference"]
    gap = max(abs(a - b) for a, b in zip(recorded, found, strict=True))
    if not gap <= _TOLERANCE_NATS:
        raise CheckpointError(
            f"the copy of {entry.ref.path} gives log-probs {gap:.2e} nats away from those recorded when it was saved. "
            "Verify the checkpoint: `rlhf checkpoints verify`."
        )


def _card(folder: RunFolder, entry: Entry) -> str:
    state = read_json(entry.ref.path / STATE)
    run = read_json(folder.manifest)["config"]["name"] if folder.manifest.exists() else folder.path.name
    score = "not measured" if entry.score is None else f"{entry.score:.4f}"
    rows = {
        "run": run,
        "step": entry.ref.step,
        "status": entry.status,
        "held-out reward": score,
        "configuration, SHA-256": state["config_sha256"],
        "seed": state["seed"],
        "code version": state["code_version"],
        **{name: f"{value:.4g}" for name, value in sorted(entry.ref.metrics.items())},
    }
    table = "".join(f"| {name} | {value} |\n" for name, value in rows.items())
    return (
        f"# {run}, checkpoint {entry.ref.step}\n\n"
        "A policy after post-training, in the form that `AutoModelForCausalLM` and `AutoTokenizer` load.\n\n"
        f"| | |\n|---|---|\n{table}\n"
        "The held-out reward is the reward model's mean on held-out prompts; it says nothing of people's judgement.\n"
    )
