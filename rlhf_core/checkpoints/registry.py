"""Every checkpoint's status, and which one is current, promoted and best (C4, C5, F2)."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from rlhf_core.checkpoints.manifest import require_whole
from rlhf_core.checkpoints.verify import STATE
from rlhf_core.data.events import record_event
from rlhf_core.data.refs import CheckpointRef, ControlState, Ref
from rlhf_core.data.store import MANIFEST, RunFolder, disk_errors, read_json, write_json
from rlhf_core.errors import CheckpointError

logger = logging.getLogger(__name__)

Status = Literal["saved", "verified", "promoted", "abandoned", "damaged", "pruned"]
_USABLE: tuple[Status, ...] = ("saved", "verified", "promoted")


class Entry(Ref):
    """One checkpoint's row."""

    ref: CheckpointRef
    parent: int | None = None
    status: Status = "saved"
    score: float | None = Field(default=None, description="held-out reward at its gate")
    experience_sha256: str | None = None


class RegistryState(Ref):
    """The content of REGISTRY.json."""

    checkpoints: dict[int, Entry] = Field(default_factory=dict[int, Entry])
    current: CheckpointRef | None = None
    promoted: int | None = None
    best: int | None = None
    decided_rounds: int = 0
    rollbacks: int = 0
    is_stopped: bool = False


class Registry:
    """REGISTRY.json of a run; every change is written at once, whole or not at all."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.path = folder.checkpoints / "REGISTRY.json"
        self.state = RegistryState.model_validate(read_json(self.path)) if self.path.exists() else RegistryState()
        self._adopt_unregistered()

    def current(self) -> CheckpointRef | None:
        return self.state.current

    def promoted(self) -> CheckpointRef | None:
        return None if self.state.promoted is None else self.state.checkpoints[self.state.promoted].ref

    def best(self) -> CheckpointRef | None:
        return None if self.state.best is None else self.state.checkpoints[self.state.best].ref

    def entry(self, step: int) -> Entry | None:
        return self.state.checkpoints.get(step)

    def last_step(self) -> int:
        """The newest iteration whose update is done; 0 before the first."""
        return max((step for step, entry in self.state.checkpoints.items() if entry.status != "damaged"), default=0)

    def add(self, entry: Entry, *, keep_last: int) -> None:
        """Register a new checkpoint, make it current, and prune what retention no longer keeps."""
        checkpoints = self.state.checkpoints | {entry.ref.step: entry}
        self._write(self.state.model_copy(update={"checkpoints": checkpoints, "current": entry.ref}))
        self._prune(keep_last)

    def close_round(
        self, round_number: int, control: ControlState, *, abandoned: Sequence[int] | None = None, stop: bool = False
    ) -> CheckpointRef:
        """Carry a round's decision out in one write; returns the policy that goes on, with `control`.

        Args:
            round_number: the round that is over.
            control: what steers the iterations that follow.
            abandoned: None goes on from the current checkpoint; a list rolls back to the last promoted one and marks
                these, which stay on disk.
            stop: the run is over.

        Raises:
            CheckpointError: a rollback, but nothing was promoted yet.
        """
        state = self.state
        target, checkpoints = self._require_current(), dict(state.checkpoints)
        if abandoned is not None:
            target = self._require_promoted()
            for step in abandoned:
                checkpoints[step] = checkpoints[step].model_copy(update={"status": "abandoned"})
        changes = {
            "checkpoints": checkpoints,
            "current": target.model_copy(update={"control": control}),
            "decided_rounds": round_number,
            "rollbacks": state.rollbacks + (abandoned is not None),
            "is_stopped": stop,
        }
        self._write(state.model_copy(update=changes))
        return self._require_current()

    def set_score(self, step: int, score: float) -> None:
        """Record a checkpoint's held-out reward."""
        entry = self.state.checkpoints[step].model_copy(update={"score": score})
        self._write(self.state.model_copy(update={"checkpoints": self.state.checkpoints | {step: entry}}))

    def promote(self, step: int, score: float | None) -> None:
        """Mark a checkpoint that passed its gate; `best` moves to it when its score is the highest so far (C02)."""
        entry = self.state.checkpoints[step].model_copy(update={"status": "promoted", "score": score})
        best = self._best_with(step, score)
        checkpoints = self.state.checkpoints | {step: entry}
        self._write(self.state.model_copy(update={"checkpoints": checkpoints, "promoted": step, "best": best}))
        self._link_best()

    def usable_current(self) -> CheckpointRef | None:
        """The current checkpoint, or the last whole one before it; damaged ones are marked on the way (C04).

        Raises:
            CheckpointError: checkpoints exist, but none is whole.
        """
        current = self.state.current
        if current is None:
            return None
        faults: list[str] = []
        candidates = [current, *self._fallbacks(current.step)]
        for candidate in candidates:
            try:
                require_whole(candidate.path)
            except CheckpointError as error:
                faults.append(str(error))
                self._mark_damaged(candidate, str(error))
                continue
            if candidate != current:
                self._write(self.state.model_copy(update={"current": candidate}))
                record_event(
                    self.folder,
                    "checkpoint_fallback",
                    f"checkpoint {current.step} is damaged ({faults[0]}); going on from checkpoint {candidate.step}.",
                    damaged=current.step,
                    used=candidate.step,
                )
            return candidate
        raise CheckpointError(
            f"no checkpoint in {self.folder.checkpoints} is whole:\n  " + "\n  ".join(faults) + "\n"
            "Start the run under another name; nothing here can be continued."
        )

    def _fallbacks(self, below: int) -> list[CheckpointRef]:
        usable = [e.ref for s, e in self.state.checkpoints.items() if s != below and e.status in _USABLE]
        return sorted(usable, key=lambda ref: -ref.step)

    def _mark_damaged(self, ref: CheckpointRef, reason: str) -> None:
        logger.warning("checkpoint %d is damaged: %s", ref.step, reason)
        entry = self.state.checkpoints[ref.step].model_copy(update={"status": "damaged"})
        self._write(self.state.model_copy(update={"checkpoints": self.state.checkpoints | {ref.step: entry}}))

    def _best_with(self, step: int, score: float | None) -> int:
        best = self.state.best
        if best is None or best == step:
            return step
        best_score = self.state.checkpoints[best].score
        return step if score is not None and (best_score is None or score > best_score) else best

    def _require_current(self) -> CheckpointRef:
        if self.state.current is None:
            raise CheckpointError(f"{self.path} has no current checkpoint yet.")
        return self.state.current

    def _require_promoted(self) -> CheckpointRef:
        target = self.promoted()
        if target is None:
            raise CheckpointError(f"{self.path}: no checkpoint has been promoted, so there is none to roll back to.")
        return target

    def _prune(self, keep_last: int) -> None:
        """Delete the weights of old checkpoints; the rows stay."""
        usable = sorted((s for s, e in self.state.checkpoints.items() if e.status in _USABLE), reverse=True)
        keep = {*usable[:keep_last], self.state.promoted, self.state.best, self._require_current().step}
        checkpoints = dict(self.state.checkpoints)
        for step in usable:
            if step not in keep:
                with disk_errors(checkpoints[step].ref.path):
                    shutil.rmtree(checkpoints[step].ref.path, ignore_errors=True)
                checkpoints[step] = checkpoints[step].model_copy(update={"status": "pruned"})
        self._write(self.state.model_copy(update={"checkpoints": checkpoints}))

    def _adopt_unregistered(self) -> None:
        """Take in a whole checkpoint whose registration a kill prevented."""
        for path in sorted(self.folder.checkpoints.glob("step-*")):
            step = int(path.name.removeprefix("step-"))
            if step in self.state.checkpoints or not (path / MANIFEST).exists():
                continue
            entry = Entry.model_validate(read_json(path / STATE)["entry"] | {"status": "saved"})
            parent = None if self.state.current is None else self.state.current.step
            if entry.parent == parent:
                checkpoints = self.state.checkpoints | {step: entry}
                self._write(self.state.model_copy(update={"checkpoints": checkpoints, "current": entry.ref}))

    def _link_best(self) -> None:
        best = self.best()
        if best is None:
            return
        target = Path(os.path.relpath(best.path / "policy", self.folder.path))
        partial = self.folder.path / ".best.partial"
        with disk_errors(self.folder.best):
            partial.unlink(missing_ok=True)
            partial.symlink_to(target)
            partial.replace(self.folder.best)

    def _write(self, state: RegistryState) -> None:
        if state != self.state:
            write_json(self.path, state.model_dump(mode="json"))
            self.state = state
