"""What a person at the terminal sees of a run that fails: the error once, from the command line, and no traceback.

The Prefect UI keeps every line, tracebacks included.
"""

from __future__ import annotations

import logging
import os

import httpx
from prefect.logging.handlers import PrefectConsoleHandler

from rlhf_core.errors import RlhfError

_REPEATS = {
    "prefect.flow_runs": "Finished in state Failed(",
    "prefect.task_runs": "Finished in state Failed(",
    "rlhf_core.data.events": "failure: ",
    "prefect._internal.concurrency": "Service 'EventsWorker' failed to process item",
}
"""Logger → how its lines begin that say again what the raised error says: something failed, or the server is gone."""


def say_errors_once() -> None:
    """Keep lines about an expected error off the terminal, unless RLHF_DEBUG is set. Doing it twice changes nothing."""
    own = [handler for handler in logging.getLogger().handlers if isinstance(handler, PrefectConsoleHandler)]
    for handler in [*own, *logging.getLogger("prefect._internal").handlers]:
        handler.addFilter(is_said_here)


def is_said_here(record: logging.LogRecord) -> bool:
    """Whether a log line belongs on the terminal."""
    if os.environ.get("RLHF_DEBUG"):
        return True
    if record.exc_info and isinstance(record.exc_info[1], RlhfError | httpx.HTTPError):
        return False
    start = _REPEATS.get(record.name)
    return start is None or not record.getMessage().startswith(start)
