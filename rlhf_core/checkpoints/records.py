"""What REGISTRY.json holds: one row per checkpoint, and which is current, promoted and best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, ValidationError

from rlhf_core.data.refs import CheckpointRef, Ref
from rlhf_core.data.store import RunFolder, read_json
from rlhf_core.errors import CheckpointError

Status = Literal["saved", "verified", "promoted", "abandoned", "damaged", "pruned"]
USABLE: tuple[Status, ...] = ("saved", "verified", "promoted")
VALID: tuple[Status, ...] = ("verified", "promoted")


class Entry(Ref):
    """One checkpoint's row. `saved` is not verified yet."""

    ref: CheckpointRef
    parent: int | None = None
    status: Status = "saved"
    score: float | None = Field(default=None, description="held-out reward at its gate")
    experience_sha256: str | None = None
    manifest_sha256: str | None = Field(default=None, description="of the folder's MANIFEST.json")
    damaged_before: int = Field(default=0, description="earlier checkpoints of this step that were found damaged")
    reason: str | None = Field(default=None, description="why it is damaged")


class RegistryState(Ref):
    """The content of REGISTRY.json."""

    checkpoints: dict[int, Entry] = Field(default_factory=dict[int, Entry])
    current: CheckpointRef | None = None
    promoted: int | None = None
    best: int | None = None
    decided_rounds: int = 0
    rollbacks: int = 0
    is_stopped: bool = False

    def best_ref(self) -> CheckpointRef | None:
        return None if self.best is None else self.checkpoints[self.best].ref

    def last_step(self) -> int:
        """The newest iteration whose update is done; 0 before the first."""
        return max((step for step, entry in self.checkpoints.items() if entry.status != "damaged"), default=0)

    def line_of(self, step: int) -> list[int]:
        """The checkpoint and those that it was trained from, newest first."""
        line: list[int] = []
        following: int | None = step
        while following is not None and following in self.checkpoints:
            line.append(following)
            following = self.checkpoints[following].parent
        return line

    def best_of(self, steps: Sequence[int]) -> int | None:
        """The one with the highest score, the newest where none has one; None of none."""
        scores = {step: score for step in steps if (score := self.checkpoints[step].score) is not None}
        return max(scores, key=lambda step: scores[step]) if scores else max(steps, default=None)


def read_registry(folder: RunFolder) -> RegistryState:
    """The state as it is on disk; empty for a run that has saved nothing.

    Raises:
        DataError: the file is no JSON.
        CheckpointError: it holds something else than a registry.
    """
    path = folder.checkpoints / "REGISTRY.json"
    if not path.exists():
        return RegistryState()
    try:
        return RegistryState.model_validate(read_json(path))
    except ValidationError as error:
        raise CheckpointError(f"{path} is no registry of checkpoints: {error}. Restore it from a backup.") from error
