"""What a person does to a run's checkpoints from outside: verify them again, and go back to one (C4, F2)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlhf_core.checkpoints.records import USABLE, Entry, RegistryState, read_registry
from rlhf_core.checkpoints.registry import Registry
from rlhf_core.checkpoints.stage import remaining_iterations, remaining_rounds
from rlhf_core.checkpoints.verify import verify_checkpoint
from rlhf_core.config.run import RunConfig
from rlhf_core.data.events import read_events, record_event
from rlhf_core.data.store import RunFolder
from rlhf_core.errors import CheckpointError, RunLocked
from rlhf_core.recovery.lock import RunLock, acquire_lock


@dataclass(frozen=True)
class Examination:
    """One checkpoint's verification; `reason` is None where it is whole."""

    step: int
    reason: str | None
    is_marked: bool = False
    """The registry was changed by it."""


@dataclass(frozen=True)
class Return:
    """What going back did, and what a resumed run will do."""

    step: int
    abandoned: tuple[int, ...]
    round_number: int | None
    """The round of the next gate; None where every round has been decided."""
    iterations: tuple[int, ...]
    """What is left of that round; empty where its gate comes next."""

    def in_words(self, run_folder: Path) -> str:
        """What follows, for the person who asked for it."""
        if self.round_number is None:
            return f"every round has been decided: `rlhf resume {run_folder}` trains no more, it writes the report."
        if not self.iterations:
            gate = f"the gate of round {self.round_number} judges it, as the round's iterations are spent"
            return f"next: `rlhf resume {run_folder}`; {gate}."
        return (
            f"next: `rlhf resume {run_folder}` goes on with iteration {self.iterations[0]}, round {self.round_number}."
        )


def examine(folder: RunFolder, config: RunConfig, steps: Sequence[int] | None) -> list[Examination]:
    """Verify checkpoints in full, and mark those that are damaged; of a run that is at work, only look.

    Args:
        folder: of the run.
        config: of the run.
        steps: which ones; None takes all whose files are there.

    Raises:
        CheckpointError: a step is not there to be verified.
    """
    with _lock_if_free(folder) as lock:
        state = read_registry(folder)
        chosen = [n for n, e in sorted(state.checkpoints.items()) if e.status != "pruned"] if steps is None else steps
        found = [(_on_disk(state, step), step) for step in chosen]
        registry = None if lock is None else Registry(folder, lock)
        return [_examine(registry, entry, config, step) for entry, step in found]


def go_back(folder: RunFolder, config: RunConfig, step: int) -> Return:
    """Make a checkpoint the one that `rlhf resume` goes on from.

    It is verified first. What is not on its line is abandoned and stays on disk. Rounds that were decided stay decided,
    and no iteration's number is used twice: training goes on with the first number that was never used, in the first
    round that is not decided. So what is abandoned is not done again, and the run is not made longer by it. The gates
    of decided rounds stay in the history that later gates look at. The learning rate's factor, β and ptx_coef are
    those decided when the run last went on from that checkpoint.

    Raises:
        RunLocked: the run is at work.
        CheckpointError: there is no such checkpoint on disk, or it is damaged.
    """
    lock = acquire_lock(folder)
    try:
        registry = Registry(folder, lock)
        entry = _on_disk(registry.state, step)
        before = registry.current()
        if before is not None and before.step == step and not registry.state.is_stopped:
            raise CheckpointError(f"checkpoint {step} of {folder.path} is the current one; there is nothing to do.")
        examination = _examine(registry, entry, config, step)
        if examination.reason is not None:
            raise CheckpointError(
                f"checkpoint {step} cannot be gone back to: {examination.reason} "
                f"Others: {sorted(n for n, e in registry.state.checkpoints.items() if e.status in USABLE)}."
            )
        abandoned = registry.go_back(step)
        number = sum(event["kind"] == "rollback_by_hand" for event in read_events(folder)) + 1
        record_event(
            folder,
            "rollback_by_hand",
            f"a person went back from checkpoint {before.step if before else '–'} to {step}; abandoned: "
            f"{', '.join(map(str, abandoned)) or 'none'}.",
            number=number,
            target=step,
            abandoned=abandoned,
        )
        following = next(iter(remaining_rounds(folder, config)), None)
        iterations = () if following is None else tuple(remaining_iterations(folder, config, following))
        return Return(step, tuple(abandoned), following, iterations)
    finally:
        lock.release()


@contextmanager
def _lock_if_free(folder: RunFolder) -> Generator[RunLock | None]:
    try:
        lock = acquire_lock(folder)
    except RunLocked:
        yield None
        return
    try:
        yield lock
    finally:
        lock.release()


def _on_disk(state: RegistryState, step: int) -> Entry:
    entry = state.checkpoints.get(step)
    there = sorted(n for n, other in state.checkpoints.items() if other.status != "pruned")
    if entry is None or entry.status == "pruned":
        why = "was deleted by retention (checkpoints.keep_last)" if entry else "does not exist"
        raise CheckpointError(f"checkpoint {step} {why}. On disk are: {there or 'none'}.")
    return entry


def _examine(registry: Registry | None, entry: Entry, config: RunConfig, step: int) -> Examination:
    try:
        verify_checkpoint(entry.ref.path, config.model, manifest_sha256=entry.manifest_sha256)
    except CheckpointError as error:
        is_marked = registry is not None and entry.status != "damaged"
        if registry is not None and is_marked:
            registry.mark_damaged(step, str(error))
            record_event(
                registry.folder, "checkpoint_damaged", f"checkpoint {step}: {error}", damaged=step, reason=str(error)
            )
        return Examination(step, str(error), is_marked)
    if registry is not None and entry.status == "saved":
        registry.mark_verified(step)
        return Examination(step, None, True)
    return Examination(step, entry.reason if entry.status == "damaged" else None)
