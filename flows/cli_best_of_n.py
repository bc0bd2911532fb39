"""`rlhf best-of-n`: the best of n responses to a run's prompts, to judge a policy or to make data for a cold start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

best_of_n_app = typer.Typer()


@best_of_n_app.command("best-of-n")
def best_of_n(
    run_folder: Annotated[Path, typer.Argument(help="a run's folder, e.g. runs/quickstart; its policy samples")],
    n: Annotated[int, typer.Option("--n", help="responses a prompt")] = 16,
    prompts: Annotated[int, typer.Option(help="prompts taken, from the first")] = 64,
    pool: Annotated[
        Literal["held_out", "train"], typer.Option(help="held_out judges the policy, train makes data for SFT")
    ] = "held_out",
    out: Annotated[Path | None, typer.Option(help="folder for the results, replaced; default RUN/best_of_n")] = None,
) -> None:
    """Keep the best of n responses by the run's scorer: kept.jsonl for SFT, and the expected best of 1 to n."""
    from rlhf_core.checkpoints.stage import start_policy
    from rlhf_core.rollout.best_of_n import run_best_of_n
    from rlhf_core.runtime import close_runtime, open_runtime

    runtime = open_runtime(run_folder)
    try:
        target = out or runtime.folder.path / "best_of_n"
        found = run_best_of_n(runtime, start_policy(runtime), target.absolute(), n=n, prompts=prompts, pool=pool)
    finally:
        close_runtime(run_folder)
    for k, value in enumerate(found.curve, start=1):
        if k & (k - 1) == 0 or k == n:
            print(f"expected best of {k}: {value:.4g}")
    print(f"{len(found.kept)} responses kept: {target}")
