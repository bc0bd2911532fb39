"""Progress bars on a terminal."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


@dataclass(frozen=True)
class ProgressBar:
    """One bar; `advance` moves it."""

    bars: Progress
    task_id: TaskID

    def advance(self, n: int = 1) -> None:
        self.bars.advance(self.task_id, n)


@contextmanager
def progress_bar(description: str, total: int, *, is_shown: bool) -> Generator[ProgressBar]:
    """A bar on stderr; silent when the output is no terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not (is_shown and console.is_terminal)) as bars:
        yield ProgressBar(bars, bars.add_task(description, total=total))
