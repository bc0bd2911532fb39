"""Saving a checkpoint: whole or not at all, then verified (F1, F2)."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_core import __version__
from rlhf_core.checkpoints.background import start_verification
from rlhf_core.checkpoints.manifest import ManifestWriter
from rlhf_core.checkpoints.registry import Entry, Registry
from rlhf_core.checkpoints.trainer_files import require_matching_optimizers
from rlhf_core.checkpoints.verify import STATE, verify_content
from rlhf_core.config.load import config_hash
from rlhf_core.data.refs import CheckpointRef, ControlState
from rlhf_core.data.store import disk_errors, write_json
from rlhf_core.engines.protocols import WorkerGroup
from rlhf_core.runtime import Runtime


def save_checkpoint(
    runtime: Runtime,
    workers: WorkerGroup,
    ref: CheckpointRef,
    *,
    parent: int | None,
    experience_sha256: str | None,
) -> CheckpointRef:
    """Write the workers' state to `ref.path`, verify it, register it and make it current.

    With `checkpoints.verify=background` it is registered as saved, and counts when its verification is done. The start
    of a run is always verified at once, as it is promoted at once.

    Raises:
        CheckpointError: what was written does not verify; the previous checkpoint stays current.
        RunLocked: another process has taken over the run.
        RunFolderError: the disk is full or cannot be written.
    """
    how = "now" if parent is None else runtime.config.checkpoints.verify
    status = "saved" if how == "background" else "verified"
    entry = Entry(ref=ref, parent=parent, status=status, experience_sha256=experience_sha256)
    # Opened before the folder appears: it would take an unregistered one for a dead process's and hash it all again.
    registry = Registry(runtime.folder, runtime.lock)
    with disk_errors(ref.path), runtime.lock.staged(ref.path.name) as partial:
        partial.mkdir()
        with ManifestWriter(partial) as manifest:
            workers.save(partial, done=manifest.add)
            write_json(
                partial / STATE,
                {
                    "entry": entry.model_dump(mode="json"),
                    "micro_inference": workers.micro_inference(),
                    "config_sha256": config_hash(runtime.config),
                    "seed": runtime.config.seed,
                    "code_version": __version__,
                },
            )
            if how == "now":  # while the disk is at work
                verify_content(partial, runtime.config.model)
            else:
                require_matching_optimizers(partial)
            manifest_sha256 = manifest.finish()
        runtime.lock.commit(partial, ref.path)
    runtime.mark_saved(ref)
    entry = entry.model_copy(update={"manifest_sha256": manifest_sha256})
    registry.add(entry, keep_last=runtime.config.checkpoints.keep_last)
    if how == "background":
        start_verification(ref.path, runtime.config.model, manifest_sha256=manifest_sha256)
    return ref


def new_reference(runtime: Runtime, step: int, control: ControlState, metrics: Mapping[str, float]) -> CheckpointRef:
    """The reference that a checkpoint of this step will have."""
    path = runtime.folder.checkpoints / f"step-{step:06d}"
    return CheckpointRef(step=step, path=path, control=control, metrics=dict(metrics))
