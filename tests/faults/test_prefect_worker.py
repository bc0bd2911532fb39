"""A Prefect worker dies under a deployment's run: the run goes on or is gone on with, by one owner at any time."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from examples.without_prefect import run as run_without_prefect
from flows.server import STATE_FILE
from rlhf_core.data.store import RunFolder
from rlhf_core.recovery.flow_runs import read_openings
from rlhf_core.reporting.status import run_status
from tests.e2e.test_deployment import background, call
from tests.faults.injection import alive, wait_until
from tests.flows.tiny_run import require_same_numbers, settings, write_config

NAME = "tiny-under-a-worker"


@pytest.mark.long_fault
@pytest.mark.timeout(600)
@pytest.mark.faults("SIGKILL of the Prefect worker while a deployment's run is at work")
def test_a_worker_killed_under_a_run(own_server, world, tmp_path, measured):
    home, folder = tmp_path / "runs", RunFolder(tmp_path / "runs" / NAME)
    slow = {"rounds": 1, "iterations_per_round": 6}
    config = write_config(tmp_path, settings(world, home, **slow))
    api = json.loads((Path(own_server["PREFECT_HOME"]) / STATE_FILE).read_text())["api_url"]
    environment = own_server | {"PREFECT_API_URL": api, "PREFECT_WORKER_QUERY_SECONDS": "1"}
    parameters = ("--param", f"config={config}", "--param", f"run_name={NAME}")
    start = ("deployment", "run", "post-training/quickstart", *parameters)
    call(environment, "work-pool", "create", "rlhf", "--type", "process", "--overwrite")
    with background(environment, tmp_path / "worker.log", "worker", "start", "--pool", "rlhf") as worker:
        call(environment, "deploy", "--name", "quickstart", "--prefect-file", "deployments/prefect.yaml")
        call(environment, *start)
        wait_until((folder.iteration(1) / "rollouts").exists, seconds=240, what="the first rollouts")
        worker.kill()
        worker.wait(30)
    owner = json.loads(folder.lock.read_text())["pid"]
    outlived = bool(alive([owner]))
    measured("the run outlived its worker" if outlived else "the run ended with its worker")
    with background(environment, tmp_path / "second.log", "worker", "start", "--pool", "rlhf"):
        call(environment, *start, "--param", "resume=true")
        wait_until(lambda: len(ended(api)) >= 1 + outlived, seconds=240, what="all flow runs ended")
    states = ended(api)
    measured(f"flow runs: {', '.join(states)}")
    # The first may live on, and then the second is refused; or it dies of its worker's end, and the second completes.
    assert states.count("Completed") == 1 and len(states) <= 2, states
    require_one_owner(folder)
    assert run_status(folder).state == "finished"
    run_without_prefect(str(config), [f"home={tmp_path / 'alone'}"])
    require_same_numbers(folder.path, tmp_path / "alone" / "tiny", iterations=6)


def ended(api: str) -> list[str]:
    """States of this test's ended flow runs; the server has others too."""
    found = httpx.post(f"{api}/flow_runs/filter", json={"flow_runs": {"name": {"any_": [NAME]}}}).json()
    return [run["state"]["name"] for run in found if run["state"]["type"] in ("COMPLETED", "FAILED", "CRASHED")]


def require_one_owner(folder: RunFolder) -> None:
    """Each owner's time ended before the next one's began."""
    openings = read_openings(folder)
    assert [one.is_closed for one in openings[-1:]] == [True]
    assert len({one.pid for one in openings}) == len(openings)
