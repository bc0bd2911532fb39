"""The two automations on a real server."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import StateType

from deployments import automations


@pytest.fixture
def client():
    with get_client(sync_client=True) as client:
        yield client
        automations.remove(client)


def test_applying_twice_leaves_two_that_the_server_reads_as_they_are_meant(client: SyncPrefectClient):
    first = automations.apply(client)
    again = automations.apply(client)
    assert [one.id for one in again] == [one.id for one in first]
    assert len(again) == 2
    assert all(one.enabled for one in again)
    for wanted, found in zip(automations.automations(), again, strict=True):
        assert found.trigger.model_dump(exclude={"id"}) == wanted.trigger.model_dump(exclude={"id"})
    zombie, reschedule = again
    assert zombie.trigger.within >= timedelta(seconds=3 * automations.HEARTBEAT_SECONDS)
    assert [action.state for action in (zombie.actions[0], reschedule.actions[0])] == [
        StateType.CRASHED,
        StateType.SCHEDULED,
    ]


def test_one_that_was_changed_or_doubled_is_put_right(client: SyncPrefectClient):
    automations.apply(client)
    zombie, _ = automations.automations()
    client.create_automation(zombie.model_copy(update={"description": "a double"}))
    client.pause_automation(automations.present(client)[0].id)
    found = automations.apply(client)
    assert len(found) == 2
    assert all(one.enabled for one in found)
    assert {one.description for one in found} == {one.description for one in automations.automations()}


def test_the_command_shows_and_removes(client: SyncPrefectClient, capsys):
    assert automations.main(["apply"]) == 0
    assert automations.main(["show"]) == 0
    assert capsys.readouterr().out.count("in force: rlhf: ") == 4
    assert automations.main(["remove"]) == 0
    assert not automations.present(client)
    assert automations.main(["show"]) == 0
    assert "there is none" in capsys.readouterr().out
    assert automations.main(["destroy"]) == 2


def test_the_deployments_beat_as_often_as_the_automation_expects():
    text = (Path(automations.__file__).parent / "prefect.yaml").read_text()
    file = yaml.safe_load(text)
    for deployment in file["deployments"]:
        beats = deployment["work_pool"]["job_variables"]["env"]["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"]
        assert int(beats) == automations.HEARTBEAT_SECONDS
        assert automations.TAG in deployment["tags"]
