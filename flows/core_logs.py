"""The core's log lines in the Prefect UI."""

from __future__ import annotations

import logging

from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging.handlers import APILogHandler

CORE = "rlhf_core"


def forward_core_log_lines() -> None:
    """Send what the core logs to the run that it belongs to.

    It does what `PREFECT_LOGGING_EXTRA_LOGGERS=rlhf_core` does, but works in every process that runs the flow, however
    it was started. Doing it twice changes nothing.
    """
    core = logging.getLogger(CORE)
    if not any(isinstance(handler, APILogHandler) for handler in core.handlers):
        handler = APILogHandler()
        handler.addFilter(_belongs_to_a_run)
        core.addHandler(handler)
    if core.level == logging.NOTSET:
        core.setLevel(logging.INFO)


def _belongs_to_a_run(record: logging.LogRecord) -> bool:
    """The core may also be used as a library in a process that ran a flow before."""
    return FlowRunContext.get() is not None or TaskRunContext.get() is not None
