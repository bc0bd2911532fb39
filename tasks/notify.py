"""People are told: of failures, lost processes, retries, rollbacks, stops and completion (F5).

One place, so that a person is told once of each (run, attempt, kind); nothing here fails or holds up a run.
"""

from __future__ import annotations

import collections
import contextvars
import logging
import threading
from pathlib import Path

from prefect import get_run_logger
from prefect.blocks.system import Secret
from prefect.runtime import flow_run
from prefect.utilities.urls import url_for

from rlhf_core.config.notifications import NotificationConfig, NotificationKind
from rlhf_core.data.events import read_events
from rlhf_core.data.store import RunFolder
from rlhf_core.decisions.records import Decision
from rlhf_core.errors import RlhfError
from rlhf_core.notifications.channels import Channel, channels_from_environment, notify, split_urls
from rlhf_core.notifications.messages import Happening
from rlhf_core.reporting.status import run_status
from rlhf_core.runtime import stored_config
from tasks.artifacts import telemetry
from tasks.run import Run

WITH_LOG: tuple[NotificationKind, ...] = ("failure", "retry")
_MOST_LINES = 200


class _LogTail(logging.Handler):
    """Keeps the process's last log lines."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: collections.deque[str] = collections.deque(maxlen=_MOST_LINES)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.extend(self.format(record).splitlines())


_tail = _LogTail()


def keep_log_tail() -> None:
    """Remember the last lines of the runs' and the core's logs; doing it twice changes nothing."""
    for name in ("prefect.flow_runs", "prefect.task_runs", "rlhf_core"):
        logging.getLogger(name).addHandler(_tail)


@telemetry
def notify_failure(run: Run, error: BaseException) -> None:
    """An error has ended the run; called when its event is recorded."""
    _tell(run, "failure", max(1, _failures(run)), str(error), error=type(error).__name__)


@telemetry
def notify_crash(run: Run, *, attempt: int, message: str) -> None:
    """A process of the run was lost, and another one goes on."""
    _tell(run, "crash", attempt, message)


@telemetry
def notify_retry(run: Run, attempt: int, *, error_class: str, message: str, plan_words: str) -> None:
    """An attempt at a stage has failed, and another one follows.

    Args:
        run: of the attempt.
        attempt: the failed one's number in the run.
        error_class: what kind of error it was.
        message: the error's.
        plan_words: what is done otherwise in the next attempt; may be empty.
    """
    _tell(run, "retry", attempt, message, error=error_class, action=plan_words)


@telemetry
def notify_decision(run: Run, decision: Decision, round_number: int) -> None:
    """A gate has decided to roll back or to stop; other decisions are not told."""
    kinds: dict[str, NotificationKind] = {"roll_back": "rollback", "stop": "stop"}
    if decision.kind in kinds:
        _tell(run, kinds[decision.kind], round_number, "; ".join(decision.reasons))


@telemetry
def notify_completion(run: Run, message: str) -> None:
    """The run has done its work; one that a decision stopped has been told of."""
    if run_status(RunFolder(run.folder)).state != "stopped":
        _tell(run, "completion", _failures(run) + 1, message)


def read_channels(config: NotificationConfig) -> tuple[list[Channel], list[str]]:
    """Channels of the environment and of Prefect Secret blocks, and the faults of those that could not be read."""
    channels, faults = channels_from_environment(config)
    for name in config.urls_from.prefect_secrets:
        found, fault = _read_secret(name, config.timeout_seconds)
        channels += found
        faults += [fault] if fault else []
    return channels, faults


def _read_secret(name: str, timeout_seconds: float) -> tuple[list[Channel], str]:
    """The channels of a Secret block, or the fault; asked for in a thread, so that a slow server holds up nothing."""
    source = f"Prefect Secret block {name}"
    answer: list[tuple[list[Channel], str]] = []

    def ask() -> None:
        try:
            block = Secret.load(name, _sync=True)  # pyright: ignore[reportCallIssue]  the decorator's own argument
            answer.append((split_urls(source, str(block.get())), ""))
        except Exception as error:  # whatever it is, a person must learn of it and the run goes on
            advice = "create it with the Apprise URL as its value"
            answer.append(([], f"{source} cannot be read ({type(error).__name__}); {advice}."))

    thread = threading.Thread(target=contextvars.copy_context().run, args=(ask,), daemon=True)
    thread.start()
    thread.join(timeout_seconds)
    return answer[0] if answer else ([], f"{source} was not given within {timeout_seconds:g} s.")


def _tell(
    run: Run,
    kind: NotificationKind,
    attempt: int,
    message: str,
    *,
    error: str = "",
    action: str = "",
) -> None:
    config = stored_config(run.folder).notifications
    if not config.is_on or kind not in config.kinds:
        return
    folder = RunFolder(run.folder)
    channels, faults = read_channels(config)
    for fault in faults:
        get_run_logger().warning("notifications: %s", fault)
    lines = list(_tail.lines)[-config.log_tail_lines :] if kind in WITH_LOG and config.log_tail_lines else []
    happening = Happening(
        kind=kind,
        run=run.name,
        folder=run.folder,
        attempt=attempt,
        message=message,
        step=_where(folder),
        error=error,
        action=action,
        log_tail=lines,
        report=_report(folder),
        link=_link(),
    )
    notify(folder, happening, config, channels)


def _failures(run: Run) -> int:
    return sum(event["kind"] == "failure" for event in read_events(RunFolder(run.folder)))


def _where(folder: RunFolder) -> str:
    """Where the run stands; a damaged file is a reason for a message, not against one."""
    try:
        return run_status(folder).stage
    except RlhfError as error:
        return f"unknown: {type(error).__name__}"


def _report(folder: RunFolder) -> Path | None:
    return folder.report if folder.report.exists() else None


def _link() -> str:
    run_id = flow_run.root_flow_run_id or flow_run.id
    return (url_for("flow-run", obj_id=run_id) or "") if run_id else ""
