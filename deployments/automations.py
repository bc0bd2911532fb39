"""Two automations that bring a run home whose worker is lost: `python -m deployments.automations apply|show|remove`.

The first declares a run without heartbeats Crashed; the second gives a crashed run back to the queue, and a worker goes
on with the same flow run and its folder. Both look only at deployments' runs with the tag `rlhf`, not at sub-flows,
which nobody could start alone. Applying twice changes nothing.
"""

from __future__ import annotations

import sys
from datetime import timedelta

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import Automation, AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification

TAG = "rlhf"
HEARTBEAT_SECONDS = 30
"""As `PREFECT_FLOWS_HEARTBEAT_FREQUENCY` in prefect.yaml has it."""
MISSED_HEARTBEATS = 4
"""At least 3: a busy machine may be late with one or two."""
ZOMBIE = "rlhf: a run without heartbeats has crashed"
RESCHEDULE = "rlhf: a crashed run goes back to the queue"
_RUN = ResourceSpecification.model_validate({"prefect.resource.id": "prefect.flow-run.*"})
_OF_OURS: list[ResourceSpecification | dict[str, str | list[str]]] = [
    ResourceSpecification.model_validate(labels)
    for labels in (
        {"prefect.resource.id": f"prefect.tag.{TAG}", "prefect.resource.role": "tag"},
        {"prefect.resource.id": "prefect.deployment.*", "prefect.resource.role": "deployment"},
    )
]
_ENDS = ("Completed", "Failed", "Cancelled", "Crashed", "Paused", "Suspended", "Scheduled", "AwaitingRetry")


def automations() -> tuple[AutomationCore, ...]:
    """Both, as they should be."""
    heartbeat = "prefect.flow-run.heartbeat"
    zombie = AutomationCore(
        name=ZOMBIE,
        description=f"No heartbeat for {MISSED_HEARTBEATS} × {HEARTBEAT_SECONDS} s: worker and flow are lost.",
        trigger=EventTrigger(
            match=_RUN,
            match_related=_OF_OURS,
            for_each={"prefect.resource.id"},
            after={heartbeat},
            expect={heartbeat, *(f"prefect.flow-run.{state}" for state in _ENDS)},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=MISSED_HEARTBEATS * HEARTBEAT_SECONDS),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED, name="Crashed", message="no heartbeat: process lost", force=False
            )
        ],
    )
    reschedule = AutomationCore(
        name=RESCHEDULE,
        description="The run is started again by a worker and goes on in its own run folder.",
        trigger=EventTrigger(
            match=_RUN,
            match_related=_OF_OURS,
            for_each={"prefect.resource.id"},
            expect={"prefect.flow-run.Crashed"},
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(0),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.SCHEDULED, name="AwaitingRetry", message="crashed; it is started again", force=False
            )
        ],
    )
    return zombie, reschedule


def present(client: SyncPrefectClient) -> list[Automation]:
    """Those of the two that the server has, with doubles."""
    return [one for wanted in automations() for one in client.read_automations_by_name(wanted.name)]


def apply(client: SyncPrefectClient) -> list[Automation]:
    """Create what is missing, put right what differs, remove doubles; what the server has then."""
    for wanted in automations():
        first, *doubles = client.read_automations_by_name(wanted.name) or [None]
        if first is None:
            client.create_automation(wanted)
        else:
            client.update_automation(first.id, _with_all_set(wanted))
        for double in doubles:
            if double is not None:
                client.delete_automation(double.id)
    return present(client)


def _with_all_set(wanted: AutomationCore) -> AutomationCore:
    """The client sends only what was set, and the server takes what is missing for what it was; but no owner."""
    return AutomationCore.model_validate(wanted.model_dump(mode="json", exclude={"owner_resource"}))


def remove(client: SyncPrefectClient) -> list[Automation]:
    """Remove both; what was removed."""
    found = present(client)
    for one in found:
        client.delete_automation(one.id)
    return found


def main(arguments: list[str]) -> int:
    """Do what the command line says; the exit code."""
    commands = {"apply": apply, "show": present, "remove": remove}
    if len(arguments) != 1 or arguments[0] not in commands:
        print("usage: python -m deployments.automations apply|show|remove", file=sys.stderr)
        return 2
    with get_client(sync_client=True) as client:
        found = commands[arguments[0]](client)
    done = {"apply": "in force", "show": "in force", "remove": "removed"}[arguments[0]]
    for one in found:
        print(f"{done}: {one.name} ({one.id})")
    if not found:
        print("there is none; `python -m deployments.automations apply` makes them")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
