"""The core's log lines in the UI."""

from __future__ import annotations

import logging
import time

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.runtime import flow_run

from flows.core_logs import forward_core_log_lines


def test_what_the_core_logs_in_a_run_reaches_the_server_once_and_nothing_else_does():
    core = logging.getLogger("rlhf_core.somewhere")

    @flow
    def says_something() -> str:
        forward_core_log_lines()
        forward_core_log_lines()
        core.info("a line of the core")
        return str(flow_run.id)

    run_id = says_something()
    core.info("said outside of any run, which the handler would warn of")
    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run_id]))
    deadline = time.monotonic() + 60
    lines: list[str] = []
    with get_client(sync_client=True) as client:
        while "a line of the core" not in lines and time.monotonic() < deadline:
            time.sleep(0.3)
            lines = [log.message for log in client.read_logs(log_filter=wanted)]
    assert lines.count("a line of the core") == 1
