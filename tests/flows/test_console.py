"""What is kept off the terminal: what the error at the end says anyway."""

from __future__ import annotations

import logging

import httpx
import pytest

from flows.console import is_said_here
from rlhf_core.errors import DataError


def record(name: str, message: str, error: Exception | None = None) -> logging.LogRecord:
    trace = None if error is None else (type(error), error, None)
    return logging.LogRecord(name, logging.ERROR, "file.py", 1, message, None, trace)


REPEATED = [
    record("prefect.flow_runs", "Encountered exception during execution", DataError("no column")),
    record("prefect.flow_runs", "Encountered exception during execution", httpx.ConnectError("refused")),
    record("prefect.flow_runs", "Finished in state Failed('no column')"),
    record("prefect.task_runs", "Finished in state Failed('no column')"),
    record("rlhf_core.data.events", "failure: DataError: no column"),
    record("prefect._internal.concurrency", "Service 'EventsWorker' failed to process item Event()", OSError()),
]
NEW = [
    record("prefect.flow_runs", "Encountered exception during execution", ValueError("a bug")),
    record("prefect.flow_runs", "Finished in state Completed()"),
    record("rlhf_core.data.events", "rollback: went back"),
    record("prefect._internal.concurrency", "something else broke", OSError("refused")),
]


@pytest.mark.parametrize("line", REPEATED, ids=lambda line: line.name)
def test_what_the_error_says_anyway_is_kept_off_the_terminal_but_for_a_debugger(line, monkeypatch):
    monkeypatch.delenv("RLHF_DEBUG", raising=False)
    assert not is_said_here(line)
    monkeypatch.setenv("RLHF_DEBUG", "1")
    assert is_said_here(line)


@pytest.mark.parametrize("line", NEW, ids=lambda line: line.name)
def test_everything_else_is_said(line, monkeypatch):
    monkeypatch.delenv("RLHF_DEBUG", raising=False)
    assert is_said_here(line)
