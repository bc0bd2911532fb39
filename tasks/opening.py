"""The start and the end of a run: its configuration, its folder, its engines."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prefect import get_run_logger, tags, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import deployment, flow_run

from rlhf_core.config.load import load_config
from rlhf_core.config.run import RunConfig
from rlhf_core.errors import ConfigError
from rlhf_core.quickstart.resolve import cache_folder, needs_quickstart_world, resolve
from rlhf_core.runtime import close_runtime, open_runtime, prepare_run
from tasks.notify import keep_log_tail, notify_failure
from tasks.reconcile import note_closing, reconcile, tags_of
from tasks.report import record_failure, report_failure
from tasks.retrying import note_lost_attempts
from tasks.run import Run


@task(task_run_name="read-config", cache_policy=NO_CACHE)
def read_config(config: str, run_name: str | None, overrides: Sequence[str]) -> RunConfig:
    """Load a configuration; its `home` comes back absolute, and a deployment's run that was given
    no name gets one of its own, which a second attempt of the same flow run finds again.

    Raises:
        ConfigError: a setting is wrong, or a deployment's run has no absolute home.
    """
    settings = load_config(config, [*overrides, *([f"name={json.dumps(run_name)}"] if run_name else [])])
    if deployment.id is None:
        home = settings.home.absolute()
        name = settings.name
    else:
        home = _deployment_home(settings.home)
        name = settings.name if run_name else f"{settings.name[:55]}-{str(flow_run.id)[:8]}"
    settings = settings.model_copy(update={"home": home, "name": name})
    get_run_logger().info("run %s: %d rounds of %d iterations", name, settings.rounds, settings.iterations_per_round)
    return settings


@task(task_run_name="quickstart-world", cache_policy=NO_CACHE)
def prepare_quickstart_world(settings: RunConfig) -> RunConfig:
    """Where the settings name the quickstart's world, make it (once; it is cached) and put its paths in."""
    if not needs_quickstart_world(settings):
        return settings
    get_run_logger().info(
        "making the quickstart's world and its base model in %s, unless they are there", cache_folder()
    )
    return resolve(settings)


@task(task_run_name="open-run", cache_policy=NO_CACHE)
def open_run(settings: RunConfig, resume: bool) -> Run:
    """Prepare the run's folder and take its lock. A flow run that is run again goes on with its own run folder.

    Raises:
        RunFolderError: the folder cannot be used, or its name is in use.
        RunLocked: another process owns the run.
    """
    folder = prepare_run(settings, resume=resume or (flow_run.run_count or 1) > 1)
    open_runtime(folder.path)
    get_run_logger().info("run folder: %s", folder.path)
    run = Run.of(settings, folder.path)
    reconcile(run)
    return run


@contextmanager
def closed_at_the_end(run: Run) -> Generator[None]:
    """Free the engines and the lock, however the run ends; one that fails leaves its report, and people are told."""
    keep_log_tail()
    try:
        with tags(*tags_of(run)):
            note_lost_attempts(run)
            yield
    except Exception as error:
        record_failure(run, error)
        report_failure(run)
        notify_failure(run, error)
        raise
    finally:
        note_closing(run)
        close_runtime(run.folder)


def _deployment_home(home: Path) -> Path:
    """A worker runs flows in folders that it deletes, so a relative home would be lost with them."""
    given = os.environ.get("RLHF_HOME")
    if home.is_absolute():
        return home
    if given is None:
        raise ConfigError(
            f"home={str(home)!r} is relative, and a deployment's run has no lasting working folder. "
            "Give an absolute one: override home=/folder/of/runs, or set RLHF_HOME in the worker's environment."
        )
    return Path(given).absolute()
