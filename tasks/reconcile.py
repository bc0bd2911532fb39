"""What a lost process left Running in the Prefect server is set to Crashed when its run goes on.

Only the flow runs that the run folder remembers are looked at, and only by the holder of the folder's lock: whoever
opened the folder before and did not close it is dead. Other runs, whatever their name, are not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from prefect import get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterParentFlowRunId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateName,
)
from prefect.client.schemas.objects import FlowRun, TaskRun
from prefect.context import FlowRunContext
from prefect.runtime import flow_run
from prefect.states import Crashed

from rlhf_core.data.store import RunFolder
from rlhf_core.errors import DataError
from rlhf_core.recovery.flow_runs import read_openings, record_closing, record_opening
from tasks.artifacts import telemetry
from tasks.notify import notify_crash
from tasks.run import Run

PAGE = 100
LEFT_OVER = ("Running", "Retrying", "AwaitingRetry", "Pending")
"""Names of states that nobody ends any more once the process is lost."""
REASON = "its process was lost; another flow run has taken up the run folder"


@telemetry
def reconcile(run: Run) -> None:
    """Note this flow run in the run folder, tell of a lost process, and set what it left Running to Crashed."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    folder = RunFolder(run.folder)
    current = context.flow_run.id
    lost = [one for one in read_openings(folder) if not one.is_closed and not one.is_of_this_process]
    record_opening(folder, str(current))
    with get_client(sync_client=True) as client:
        client.update_flow_run(current, tags=sorted({*flow_run.tags, *tags_of(run)}))
        crashed = mark_lost(client, [UUID(one.flow_run_id) for one in lost], current, context.start_time)
    if crashed:
        get_run_logger().warning("%d flow and task runs of a lost process were set to Crashed", crashed)
    if lost:
        words = f"process {lost[-1].pid} on {lost[-1].host}, which had the run since {lost[-1].time}, is gone."
        notify_crash(run, attempt=lost[-1].opening, message=words)


@telemetry
def note_closing(run: Run) -> None:
    """Note that the flow run has come to its end, while the lock is still held."""
    record_closing(RunFolder(run.folder))


def tags_of(run: Run) -> tuple[str, ...]:
    """Tags by which the run's flow and task runs are found in the UI: its name, and which folder of that name."""
    try:
        openings = read_openings(RunFolder(run.folder))
    except DataError:  # the warning of it is `reconcile`'s; a tag is not worth a run
        openings = ()
    return f"run:{run.name}", *(f"folder:{one.identity[:12]}" for one in openings[-1:])


def mark_lost(client: SyncPrefectClient, lost: Sequence[UUID], current: UUID, since: datetime) -> int:
    """Set the lost flow runs, their sub-flows and tasks to Crashed; how many there were.

    Args:
        client: of the server.
        lost: flow runs whose process is dead; the current one is among them when it is run again.
        current: flow run of this process.
        since: when this process began it; its tasks from then on live.
    """
    if not lost:
        return 0
    roots = _flow_runs(client, FlowRunFilter(id=FlowRunFilterId(any_=list(set(lost)))))
    below = _descendants(client, [run.id for run in roots])
    dead = [run for run in (*roots, *below) if run.id != current and _is_left_over(run)]
    tasks = [
        task_run
        for task_run in _task_runs_left_over(client, [run.id for run in (*roots, *below)])
        if task_run.flow_run_id != current or (task_run.start_time is not None and task_run.start_time < since)
    ]
    for task_run in tasks:
        client.set_task_run_state(task_run.id, Crashed(message=REASON), force=True)
    for run in dead:
        client.set_flow_run_state(run.id, Crashed(message=REASON), force=True)
    return len(tasks) + len(dead)


def _is_left_over(run: FlowRun) -> bool:
    return run.state is not None and run.state.name in LEFT_OVER


def _descendants(client: SyncPrefectClient, parents: list[UUID]) -> list[FlowRun]:
    found: list[FlowRun] = []
    while parents:
        below = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=parents))
        children = _flow_runs(client, below)
        found += children
        parents = [run.id for run in children]
    return found


def _flow_runs(client: SyncPrefectClient, which: FlowRunFilter) -> list[FlowRun]:
    found: list[FlowRun] = []
    while page := client.read_flow_runs(flow_run_filter=which, limit=PAGE, offset=len(found)):
        found += page
    return found


def _task_runs_left_over(client: SyncPrefectClient, flow_runs: list[UUID]) -> list[TaskRun]:
    which = FlowRunFilter(id=FlowRunFilterId(any_=flow_runs))
    states = TaskRunFilter(state=TaskRunFilterState(name=TaskRunFilterStateName(any_=list(LEFT_OVER))))
    found: list[TaskRun] = []
    while page := client.read_task_runs(flow_run_filter=which, task_run_filter=states, limit=PAGE, offset=len(found)):
        found += page
    return found
