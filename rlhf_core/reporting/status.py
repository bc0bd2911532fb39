"""Where a run stands, for `rlhf status`: read from its folder, while it runs or after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rlhf_core.data.store import RunFolder
from rlhf_core.recovery.ledger import Attempt, describe
from rlhf_core.reporting.sources import RunRecord, RunState, load_run

SHOWN_EVENTS = 5
_STATE_STYLES: dict[RunState, str] = {
    "not started": "dim",
    "unfinished": "yellow",
    "failed": "bold red",
    "stopped": "yellow",
    "finished": "green",
}
_FAULTS = {"error": "failed", "lost": "lost with their process", "interrupted": "interrupted"}
_ITERATION_PARTS = ("rollouts", "scored", "validated", "experience")


@dataclass(frozen=True)
class RunStatus:
    """A run at a glance; None where nothing has been measured or decided."""

    name: str
    path: Path
    state: RunState
    stage: str
    iteration: int
    iterations: int | None
    reward: float | None
    kl_nats: float | None
    kl_coef: float | None
    ptx_coef: float | None
    last_decision: str | None
    promoted: tuple[int, ...]
    best: int | None
    attempts: str
    events: tuple[str, ...]


def run_status(folder: RunFolder) -> RunStatus:
    """Read the status of a run.

    Raises:
        DataError: the folder does not exist, or a file in it is malformed.
    """
    run = load_run(folder)
    decision = run.last_decision
    return RunStatus(
        name=run.name,
        path=folder.path,
        state=run.state,
        stage=last_stage(run),
        iteration=run.iteration,
        iterations=run.config.iterations if run.config else None,
        reward=run.last("reward/raw_mean"),
        kl_nats=run.last("experience/kl_exact_nats"),
        kl_coef=run.last("control/kl_coef"),
        ptx_coef=run.last("control/ptx_coef"),
        last_decision=": ".join([decision.kind.replace("_", " "), *decision.reasons[:1]]) if decision else None,
        promoted=tuple(sorted(n for n, entry in run.registry.checkpoints.items() if entry.status == "promoted")),
        best=run.best_step,
        attempts=attempts_in_words(run.attempts),
        events=tuple(f"{event['kind']}: {event['message']}" for event in run.events[-SHOWN_EVENTS:]),
    )


def attempts_in_words(attempts: Sequence[Attempt]) -> str:
    """How often it went wrong, and with which settings the last attempt was made."""
    counts = Counter(one.outcome for one in attempts)
    faults = [f"{counts[outcome]} {word}" for outcome, word in _FAULTS.items() if counts[outcome]]
    words = f"{len(attempts)}, {', '.join(faults) or 'none failed'}"
    if attempts and attempts[-1].words:
        words += f"; last: {describe(attempts[-1])}, {attempts[-1].words}"
    return words


def last_stage(run: RunRecord) -> str:
    """The newest finished piece of work, in words."""
    running = run.iteration + 1
    parts = [part for part in _ITERATION_PARTS if (run.folder.iteration(running) / part / "MANIFEST.json").exists()]
    if parts:
        return f"iteration {running}: {parts[-1]} done"
    gates = [gate for gate in run.gates if gate.evaluation.step >= run.iteration]
    if gates and run.iteration:
        return f"gate {gates[-1].round} {'decided' if gates[-1].decision else 'evaluated'}"
    if run.iteration:
        return f"iteration {run.iteration} done"
    if run.reward_model:
        return "reward model validated"
    return "baseline evaluated" if run.baseline else "preparing"


def render_status(status: RunStatus) -> RenderableType:
    """The status for a terminal. Texts from files are shown as they are, never read as markup."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", justify="right")
    grid.add_column(overflow="fold")
    for label, text in _lines(status):
        grid.add_row(label, text)
    return Group(Text(status.name, style="bold"), grid)


def _lines(status: RunStatus) -> list[tuple[str, Text]]:
    planned = f" of {status.iterations}" if status.iterations else ""
    best = f"{status.best} (best), " if status.best else ""
    promoted = best + "all promoted: " + (", ".join(map(str, status.promoted)) or "none")
    lines = [
        ("state", Text(status.state, style=_STATE_STYLES[status.state])),
        ("stage", Text(status.stage)),
        ("iteration", Text(f"{status.iteration}{planned}")),
        ("reward, raw mean", Text(_number(status.reward))),
        ("KL, nats per token", Text(_number(status.kl_nats))),
        ("β, γ", Text(f"{_number(status.kl_coef)}, {_number(status.ptx_coef)}")),
        ("last decision", Text(status.last_decision or "none yet")),
        ("checkpoints", Text(promoted)),
        ("attempts", Text(status.attempts)),
    ]
    lines += [("last events" if not index else "", Text(event)) for index, event in enumerate(status.events)]
    return [*lines, ("folder", Text(str(status.path)))]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
