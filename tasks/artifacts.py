"""What a run shows in the Prefect UI (V2): progress, each gate's table, a summary with the report's place.

Artifacts are telemetry: one that cannot be stored is logged as a warning and never fails the training.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, cast
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from rlhf_core.data.events import read_events
from rlhf_core.data.refs import EvaluationResult
from rlhf_core.data.store import RunFolder
from rlhf_core.recovery.ledger import Attempt, notable, read_attempts
from tasks.run import Run

P = ParamSpec("P")

UPDATE_SECONDS = 5.0
"""Shortest time between two updates of a progress bar; each costs some 15 ms."""

_progress: dict[Path, tuple[UUID, float]] = {}


def artifact_key(*parts: str) -> str:
    """A stable key as Prefect allows it: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")


def telemetry(publish: Callable[P, None]) -> Callable[P, None]:
    """Let a publishing function warn instead of fail: training is worth more than its picture."""

    @functools.wraps(publish)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            publish(*args, **kwargs)
        except Exception as error:
            get_run_logger().warning("%s failed, the run goes on: %r", publish.__name__, error)

    return guarded


@telemetry
def publish_progress(run: Run, iteration: int) -> None:
    """Move the bar of iterations; updates that come too soon are left out, the last one never is."""
    percent = round(100 * iteration / run.iterations, 1)
    known = _progress.get(run.folder)
    if known is None:
        bar = create_progress_artifact(
            percent, key=artifact_key(run.name, "progress"), description=f"iterations of run {run.name}"
        )
        _progress[run.folder] = (cast(UUID, bar), time.monotonic())
    elif time.monotonic() - known[1] >= UPDATE_SECONDS or iteration == run.iterations:
        update_progress_artifact(known[0], percent)
        _progress[run.folder] = (known[0], time.monotonic())


@telemetry
def publish_gate_table(run: Run, gate: str, evaluation: EvaluationResult) -> None:
    """The table of one evaluation: a row for each benchmark, perplexity and the held-out reward."""
    create_table_artifact(
        table=gate_rows(evaluation),
        key=artifact_key(run.name, gate),
        description=f"{gate} of run {run.name}, checkpoint {evaluation.step}",
    )


def gate_rows(evaluation: EvaluationResult) -> list[dict[str, Any]]:
    """Rows for people: rounded, with the interval of the score and of the paired drop."""
    rows = [
        _row(
            score.name,
            score.accuracy,
            interval=f"{score.low:.3f} to {score.high:.3f}",
            drop=f"{score.drop:+.3f} ({score.drop_low:+.3f} to {score.drop_high:+.3f})",
            items=str(score.items),
        )
        for score in evaluation.benchmarks
    ]
    if evaluation.perplexity is not None:
        rows.append(_row("perplexity", evaluation.perplexity))
    gain = (evaluation.reward_gain_low, evaluation.reward_gain_high)
    return [
        *rows,
        _row("held-out reward", evaluation.held_out_reward),
        _row("reward gain, std of the baseline", evaluation.reward_gain, interval=f"{gain[0]:.3f} to {gain[1]:.3f}"),
        _row("held-out KL, nats per token", evaluation.held_out_kl_nats),
    ]


def _row(measure: str, value: float, *, interval: str = "", drop: str = "", items: str = "") -> dict[str, Any]:
    return {"measure": measure, "value": round(value, 4), "interval": interval, "drop": drop, "items": items}


@telemetry
def publish_attempts(run: Run) -> None:
    """The attempts that failed, were lost or had other settings: the timeline shows three attempts as one bar."""
    create_table_artifact(
        table=[attempt_row(one) for one in notable(read_attempts(RunFolder(run.folder)))],
        key=artifact_key(run.name, "attempts"),
        description=f"attempts of run {run.name} that failed, were lost or had other settings",
    )


def attempt_row(attempt: Attempt) -> dict[str, Any]:
    """One attempt for people."""
    return {
        "attempt": attempt.attempt,
        "stage": attempt.stage,
        "iteration": attempt.iteration or "",
        "outcome": attempt.outcome or "running",
        "class": (attempt.error_class or "").replace("_", " "),
        "settings": attempt.words,
        "message": attempt.message,
    }


@telemetry
def publish_summary(run: Run, report: Path) -> None:
    """Where the results lie, and what happened."""
    events = read_events(RunFolder(run.folder))
    lines = [
        f"# Run {run.name}",
        "",
        f"- Report: [{report.name}]({report.as_uri()}) (`{report}`; open it from the file manager)",
        f"- Best policy, a Hugging Face folder: `{RunFolder(run.folder).best}`",
        f"- Everything else: `{run.folder}`",
        "",
        "## Events",
        "",
        *([f"- **{event['kind']}** {event['message']}" for event in events] or ["None."]),
    ]
    create_markdown_artifact(
        "\n".join(lines), key=artifact_key(run.name, "summary"), description=f"results and events of run {run.name}"
    )
