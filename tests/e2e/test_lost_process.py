"""What a killed process left Running in the server is Crashed once the run goes on, and people learn of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Running

from flows.server import STATE_FILE
from rlhf_core.data.store import RunFolder
from rlhf_core.recovery.flow_runs import read_openings
from tests.e2e.test_kill_and_resume import kill_in_the_middle, rlhf
from tests.flows.tiny_run import settings, write_config
from tests.receiver import receiver
from tests.tiny_model import make_tiny_world


@pytest.fixture
def client(own_server) -> Generator[SyncPrefectClient]:
    handle = json.loads((Path(own_server["PREFECT_HOME"]) / STATE_FILE).read_text())
    with temporary_settings({PREFECT_API_URL: handle["api_url"]}), get_client(sync_client=True) as client:
        yield client


@flow(name="post-training")
def another() -> None:
    """Has the run's name, and lives."""


@pytest.mark.long_fault
@pytest.mark.faults("SIGKILL of the flow's process: what the Prefect server still calls Running")
@pytest.mark.timeout(600)
def test_nothing_of_a_killed_process_stays_running_and_nothing_of_a_live_one_is_touched(own_server, client, tmp_path):
    notifications = {"urls_from": {"env": ["RLHF_TEST_URL"]}}
    content = settings(
        make_tiny_world(tmp_path / "world"),
        tmp_path / "runs",
        rounds=1,
        iterations_per_round=2,
        notifications=notifications,
    )
    folder = RunFolder(tmp_path / "runs" / "tiny")
    live = client.create_flow_run(another, name="tiny", tags=["run:tiny"], state=Running())
    before = states(client, except_for=live.id)
    with receiver() as kept:
        environment = own_server | {"RLHF_TEST_URL": kept.url}
        kill_in_the_middle(environment, write_config(tmp_path, content), folder)
        left = states(client, except_for=live.id)["Running"] - before["Running"]
        assert left >= 3  # the flow, an iteration's sub-flow, its place in the flow; a task, if it had been told
        rlhf(environment, "resume", folder.path)
    after = states(client, except_for=live.id)
    assert after["Running"] == before["Running"]
    assert after["Crashed"] - before["Crashed"] >= left
    assert client.read_flow_run(live.id).state_name == "Running"
    lost, second = read_openings(folder)
    assert (lost.is_closed, second.is_closed) == (False, True)
    assert client.read_flow_run(lost.flow_run_id).state_name == "Crashed"
    tags = client.read_flow_run(second.flow_run_id).tags
    assert set(tags) >= {"run:tiny", f"folder:{lost.identity[:12]}"}
    titles = [message["title"].split(" (")[0] for message in kept.messages]
    assert titles == ["rlhf: tiny lost its process", "rlhf: tiny is complete"]


def states(client: SyncPrefectClient, *, except_for: object) -> Counter[str]:
    """How many flow and task runs the server has in each state."""
    runs = [run for run in client.read_flow_runs(limit=200) if run.id != except_for]
    return Counter(str(run.state_name) for run in (*runs, *client.read_task_runs(limit=200)))
