"""Saving a checkpoint: whole or not at all, then verified (F1, F2)."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_core import __version__
from rlhf_core.checkpoints.manifest import write_manifest
from rlhf_core.checkpoints.registry import Entry, Registry
from rlhf_core.checkpoints.verify import STATE, verify_checkpoint
from rlhf_core.config.load import config_hash
from rlhf_core.data.refs import CheckpointRef, ControlState
from rlhf_core.data.store import stage_folder, write_json
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

    Raises:
        CheckpointError: what was written does not verify; the previous checkpoint stays current.
        RunLocked: another process has taken over the run.
        RunFolderError: the disk is full or cannot be written.
    """
    entry = Entry(ref=ref, parent=parent, status="verified", experience_sha256=experience_sha256)
    with stage_folder(ref.path) as partial:
        workers.save(partial)
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
        write_manifest(partial)
        verify_checkpoint(partial, runtime.config.model)
        runtime.lock.require_ownership()
    runtime.mark_saved(ref)
    Registry(runtime.folder).add(entry, keep_last=runtime.config.checkpoints.keep_last)
    return ref


def new_reference(runtime: Runtime, step: int, control: ControlState, metrics: Mapping[str, float]) -> CheckpointRef:
    """The reference that a checkpoint of this step will have."""
    path = runtime.folder.checkpoints / f"step-{step:06d}"
    return CheckpointRef(step=step, path=path, control=control, metrics=dict(metrics))
