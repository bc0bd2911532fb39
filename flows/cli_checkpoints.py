"""`rlhf checkpoints`: look at a run's checkpoints, verify them, go back to one, take one out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from rlhf_core.checkpoints.listing import CheckpointRow

checkpoints_app = typer.Typer(no_args_is_help=True, help="The checkpoints of a run.")
RunPath = Annotated[Path, typer.Argument(help="a run's folder, e.g. runs/quickstart")]


@checkpoints_app.command("list")
def list_checkpoints(run_folder: RunPath) -> None:
    """Each checkpoint's status, score, KL per token, size, time and path."""
    from rlhf_core.checkpoints.listing import checkpoint_rows
    from rlhf_core.data.store import RunFolder
    from rlhf_core.runtime import stored_config

    stored_config(run_folder)
    rows = checkpoint_rows(RunFolder(run_folder.absolute()))
    if not rows:
        print("no checkpoint yet")
        return
    columns = ("step", "status", "is", "reward", "KL, nats", "MiB", "saved")
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    Console().print(table)
    for row in rows:
        if row.bytes is not None:
            print(f"{row.step}: {row.path}")


@checkpoints_app.command()
def verify(
    run_folder: RunPath,
    steps: Annotated[list[int] | None, typer.Argument(help="steps to verify; left out, the current one")] = None,
    every: Annotated[bool, typer.Option("--all", help="all whose files are there")] = False,
) -> None:
    """Hashes, loading and a micro-inference; a damaged one is marked, and the exit code is 7."""
    from rlhf_core.checkpoints.by_hand import examine
    from rlhf_core.checkpoints.records import read_registry
    from rlhf_core.data.store import RunFolder
    from rlhf_core.errors import CheckpointError
    from rlhf_core.runtime import stored_config

    config, folder = stored_config(run_folder), RunFolder(run_folder.absolute())
    current = read_registry(folder).current
    if not every and not steps and current is None:
        print("no checkpoint yet")
        return
    chosen = None if every else steps or [current.step if current else 0]
    found = examine(folder, config, chosen)
    for one in found:
        note = "" if one.is_marked or one.reason is None else " (not marked anew)"
        print(f"{one.step}: {'whole' if one.reason is None else f'damaged{note}: {one.reason}'}")
    damaged = [one.step for one in found if one.reason is not None]
    if damaged:
        raise CheckpointError(f"damaged: {', '.join(map(str, damaged))}. A run goes on from the last whole one.")


@checkpoints_app.command()
def rollback(
    run_folder: RunPath, to: Annotated[int, typer.Option("--to", help="step of the checkpoint to go back to")]
) -> None:
    """Make a checkpoint the one that `rlhf resume` goes on from; later ones are marked and stay on disk.

    Decided rounds stay decided, and no iteration's number is used twice.
    """
    from rlhf_core.checkpoints.by_hand import go_back
    from rlhf_core.data.store import RunFolder
    from rlhf_core.runtime import stored_config

    done = go_back(RunFolder(run_folder.absolute()), stored_config(run_folder), to)
    print(f"current: checkpoint {done.step}; abandoned: {', '.join(map(str, done.abandoned)) or 'none'}")
    print(done.in_words(run_folder))


@checkpoints_app.command()
def export(
    run_folder: RunPath,
    into: Annotated[Path, typer.Argument(help="a folder that does not exist yet, or an empty one")],
    step: Annotated[str, typer.Option("--step", help="best, current, or a step's number")] = "best",
) -> None:
    """Copy a policy as a plain Hugging Face folder with a model card."""
    from rlhf_core.checkpoints.export import export_policy
    from rlhf_core.data.store import RunFolder
    from rlhf_core.runtime import stored_config

    print(export_policy(RunFolder(run_folder.absolute()), stored_config(run_folder), step, into))


def _cells(row: CheckpointRow) -> tuple[str, ...]:
    def number(value: float | None) -> str:
        return "–" if value is None else f"{value:.4g}"

    return (
        str(row.step),
        row.status,
        ", ".join(row.roles),
        number(row.score),
        number(row.kl_nats),
        "–" if row.bytes is None else f"{row.bytes / 2**20:.1f}",
        "–" if row.saved_at is None else f"{row.saved_at:%Y-%m-%d %H:%M:%S}",
    )
