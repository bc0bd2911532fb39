"""Which checkpoints may be deleted (F2)."""

from __future__ import annotations

from rlhf_core.checkpoints.records import VALID, RegistryState


def deletable(state: RegistryState, keep_last: int) -> list[int]:
    """Steps whose files are no longer needed.

    Kept are the `keep_last` newest valid ones, the current, the promoted and the best. What is not verified yet, and
    what was abandoned or damaged, is never deleted: the first may turn out to be needed, the others are evidence.
    """
    valid = sorted((step for step, entry in state.checkpoints.items() if entry.status in VALID), reverse=True)
    current = None if state.current is None else state.current.step
    keep = {*valid[:keep_last], state.promoted, state.best, current}
    return [step for step in valid if step not in keep]
