"""Every checkpoint's status, and which one is current, promoted and best (C4, C5, F2)."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.checkpoints.manifest import require_whole
from rlhf_core.checkpoints.records import USABLE, VALID, Entry, RegistryState, read_registry
from rlhf_core.checkpoints.retention import deletable
from rlhf_core.checkpoints.verify import STATE
from rlhf_core.data.events import record_event
from rlhf_core.data.refs import CheckpointRef, ControlState
from rlhf_core.data.store import MANIFEST, RunFolder, disk_errors, file_sha256, read_json, write_json
from rlhf_core.errors import CheckpointError, DataError
from rlhf_core.recovery.lock import RunLock

logger = logging.getLogger(__name__)


class Registry:
    """REGISTRY.json of a run; every change is written at once, whole or not at all.

    With the run's lock given, a change is refused (RunLocked) once another process has taken the run over. Without
    one there is no such check: for tools on a folder that no run is at work in.
    """

    def __init__(self, folder: RunFolder, lock: RunLock | None = None) -> None:
        self.folder = folder
        self.lock = lock
        self.path = folder.checkpoints / "REGISTRY.json"
        self.state = read_registry(folder)
        self._adopt_unregistered()

    def current(self) -> CheckpointRef | None:
        return self.state.current

    def promoted(self) -> CheckpointRef | None:
        return None if self.state.promoted is None else self.state.checkpoints[self.state.promoted].ref

    def best(self) -> CheckpointRef | None:
        return self.state.best_ref()

    def entry(self, step: int) -> Entry | None:
        return self.state.checkpoints.get(step)

    def add(self, entry: Entry, *, keep_last: int) -> None:
        """Register a new checkpoint, make it current, and prune what retention no longer keeps."""
        step, before = entry.ref.step, self.entry(entry.ref.step)
        if before is not None and before.status == "damaged":
            entry = entry.model_copy(update={"damaged_before": before.damaged_before + 1})
        self._change(step, entry, current=entry.ref)
        self._prune(keep_last)

    def close_round(
        self, round_number: int, control: ControlState, *, abandoned: Sequence[int] | None = None, stop: bool = False
    ) -> CheckpointRef:
        """Carry a round's decision out in one write; returns the policy that goes on, with `control`.

        Its row keeps `control` too: whoever comes back to it, after damage or by hand, goes on as was decided.

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
        following = target.model_copy(update={"control": control})
        checkpoints[target.step] = checkpoints[target.step].model_copy(update={"ref": following})
        changes = {
            "checkpoints": checkpoints,
            "current": following,
            "decided_rounds": round_number,
            "rollbacks": state.rollbacks + (abandoned is not None),
            "is_stopped": stop,
        }
        self._write(state.model_copy(update=changes))
        return following

    def go_back(self, step: int) -> list[int]:
        """Make a checkpoint current because a person said so; returns the abandoned ones, which stay on disk.

        What is not on its line is abandoned. `promoted` and `best` move to what of the line was promoted and is still
        on disk; where nothing is, the person's choice stands in for it. A decision to stop is lifted.
        """
        line = self.state.line_of(step)
        checkpoints = dict(self.state.checkpoints)
        if checkpoints[step].status != "promoted":
            checkpoints[step] = checkpoints[step].model_copy(update={"status": "verified"})
        abandoned = sorted(n for n, entry in checkpoints.items() if entry.status in USABLE and n not in line)
        for other in abandoned:
            checkpoints[other] = checkpoints[other].model_copy(update={"status": "abandoned"})
        promoted = [n for n in line if checkpoints[n].status == "promoted"] or [step]
        changes = {
            "checkpoints": checkpoints,
            "current": checkpoints[step].ref,
            "promoted": promoted[0],
            "best": self.state.best_of(promoted),
            "is_stopped": False,
        }
        self._write(self.state.model_copy(update=changes))
        self._link_best()
        return abandoned

    def set_score(self, step: int, score: float) -> None:
        """Record a checkpoint's held-out reward."""
        self._change(step, self.state.checkpoints[step].model_copy(update={"score": score}))

    def promote(self, step: int, score: float | None) -> None:
        """Mark a checkpoint that passed its gate; `best` moves to it when its score is the highest so far (C02).

        Raises:
            CheckpointError: it is not verified.
        """
        entry = self.state.checkpoints[step]
        if entry.status not in VALID:
            raise CheckpointError(
                f"checkpoint {step} is {entry.status}, not verified, so it cannot be promoted. "
                "Resume the run: it goes on from the last verified one."
            )
        entry = entry.model_copy(update={"status": "promoted", "score": score})
        self._change(step, entry, promoted=step, best=self._best_with(step, score))
        self._link_best()

    def mark_verified(self, step: int) -> None:
        """A checkpoint that was only saved has been found whole."""
        self._change(step, self.state.checkpoints[step].model_copy(update={"status": "verified"}))

    def mark_damaged(self, step: int, reason: str) -> None:
        """It is never used again; its files stay for whoever looks for the cause."""
        logger.warning("checkpoint %d is damaged: %s", step, reason)
        entry = self.state.checkpoints[step].model_copy(update={"status": "damaged", "reason": reason})
        changes: dict[str, Any] = {}
        others = [n for n, other in self.state.checkpoints.items() if other.status == "promoted" and n != step]
        if self.state.promoted == step:
            changes["promoted"] = max(others, default=None)
        if self.state.best == step:
            changes["best"] = self.state.best_of(others)
        self._change(step, entry, **changes)
        if "best" in changes:
            self._link_best()

    def usable_current(self, verify: Callable[[Entry], None] | None = None) -> CheckpointRef | None:
        """The current checkpoint, or the last whole one before it; damaged ones are marked on the way (C04).

        Args:
            verify: raises CheckpointError for what must not be used; hashes alone when it is not given.

        Raises:
            CheckpointError: checkpoints exist, but none is whole.
        """
        current = self.state.current
        if current is None:
            return None
        faults: list[str] = []
        for candidate in [current, *self._fallbacks(current.step)]:
            entry = self.state.checkpoints[candidate.step]
            try:
                _require_sound(entry, verify)
            except CheckpointError as error:
                faults.append(str(error))
                if entry.status != "damaged":
                    self.mark_damaged(candidate.step, str(error))
                continue
            if entry.status == "saved" and verify is not None:
                self.mark_verified(candidate.step)
            if candidate != current:
                self._fall_back(current, candidate, faults[0])
            return candidate
        raise CheckpointError(
            f"no checkpoint in {self.folder.checkpoints} is whole:\n  " + "\n  ".join(faults) + "\n"
            "Start the run under another name; nothing here can be continued."
        )

    def _fall_back(self, current: CheckpointRef, used: CheckpointRef, reason: str) -> None:
        self._write(self.state.model_copy(update={"current": used}))
        entry = self.state.checkpoints[current.step]
        record_event(
            self.folder,
            "checkpoint_fallback",
            f"checkpoint {current.step} is damaged ({reason}); going on from checkpoint {used.step}.",
            damaged=current.step,
            used=used.step,
            **({"times": entry.damaged_before + 1} if entry.damaged_before else {}),
        )

    def _fallbacks(self, below: int) -> list[CheckpointRef]:
        usable = [e.ref for s, e in self.state.checkpoints.items() if s < below and e.status in USABLE]
        return sorted(usable, key=lambda ref: -ref.step)

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
        """Delete the weights of old checkpoints; the rows stay. First the rows, so that none names what is gone."""
        old = deletable(self.state, keep_last)
        checkpoints = self.state.checkpoints
        pruned = {step: checkpoints[step].model_copy(update={"status": "pruned"}) for step in old}
        self._write(self.state.model_copy(update={"checkpoints": checkpoints | pruned}))
        for step, entry in self.state.checkpoints.items():
            if entry.status == "pruned" and (path := self.folder.checkpoints / f"step-{step:06d}").exists():
                with disk_errors(path):
                    shutil.rmtree(path, ignore_errors=True)

    def _adopt_unregistered(self) -> None:
        """Take in a whole checkpoint whose registration a kill prevented."""
        for path in sorted(self.folder.checkpoints.glob("step-*")):
            step = int(path.name.removeprefix("step-"))
            if step in self.state.checkpoints or not (path / MANIFEST).exists():
                continue
            try:
                require_whole(path)
                entry = Entry.model_validate(read_json(path / STATE)["entry"] | {"status": "saved"})
            except (CheckpointError, DataError):
                continue  # the step is done again, and its checkpoint takes this one's place
            parent = None if self.state.current is None else self.state.current.step
            if entry.parent == parent:
                facts = {"manifest_sha256": file_sha256(path / MANIFEST)}
                self._change(step, entry.model_copy(update=facts), current=entry.ref)

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

    def _change(self, step: int, entry: Entry, **pointers: Any) -> None:
        checkpoints = self.state.checkpoints | {step: entry}
        self._write(self.state.model_copy(update={"checkpoints": checkpoints, **pointers}))

    def _write(self, state: RegistryState) -> None:
        if state == self.state:
            return
        content = state.model_dump(mode="json")
        if self.lock is None:
            write_json(self.path, content)
        else:
            with disk_errors(self.path), self.lock.staged(self.path.name) as staged:
                write_json(staged, content)
                self.lock.commit(staged, self.path)
        self.state = state


def _require_sound(entry: Entry, verify: Callable[[Entry], None] | None) -> None:
    if entry.status == "damaged":
        raise CheckpointError(entry.reason or f"{entry.ref.path} was found damaged.")
    require_whole(entry.ref.path, manifest_sha256=entry.manifest_sha256)
    if verify is not None:
        verify(entry)
