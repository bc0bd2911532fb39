"""A run whose Prefect server dies is one clear error, and goes on where it stopped."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from flows.server import STATE_FILE
from rlhf_core.data.store import RunFolder, file_sha256
from rlhf_core.errors import ServerError
from tests.e2e.conftest import RLHF, ROOT
from tests.e2e.mortal_server import mortal_server
from tests.flows.tiny_run import metrics_rows, settings, write_config
from tests.tiny_model import make_tiny_world


@pytest.mark.faults("death of the Prefect server under a run")
@pytest.mark.long_fault
@pytest.mark.timeout(600)
def test_a_run_whose_server_dies_is_one_error_and_goes_on_with_a_server(own_server, tmp_path):
    world = make_tiny_world(tmp_path / "world")
    changed = settings(world, tmp_path / "runs", rounds=1, evaluation={"held_out_rollouts": 8})
    config, folder = write_config(tmp_path, changed), RunFolder(tmp_path / "runs" / "tiny")
    api_url = json.loads((Path(own_server["PREFECT_HOME"]) / STATE_FILE).read_text())["api_url"]
    with mortal_server(urlsplit(api_url).port or 80) as server:
        # A dead server is noticed in seconds; by default Prefect's client tries for a minute.
        mine = {"PREFECT_API_URL": f"http://127.0.0.1:{server.port}/api", "PREFECT_CLIENT_MAX_RETRIES": "1"}
        process = rlhf(own_server | mine, "run", config)
        rollouts = folder.iteration(1) / "rollouts"
        while not rollouts.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        server.die()
        _, said = process.communicate(timeout=120)
        assert process.returncode == ServerError.exit_code
        assert "Traceback" not in said and said.count("error (") == 1
        words = f"error (ServerError): the Prefect server at {mine['PREFECT_API_URL']} stopped answering"
        assert said.splitlines()[-1].startswith(words) and "`rlhf resume" in said
        before = file_sha256(rollouts / "MANIFEST.json")
        server.live()
        process = rlhf(own_server | mine, "resume", folder.path)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert len(metrics_rows(folder.path)) == 1
    assert file_sha256(rollouts / "MANIFEST.json") == before


def rlhf(environment: dict[str, str], *arguments: object) -> subprocess.Popen[str]:
    """A command that goes on."""
    return subprocess.Popen(
        [*RLHF, *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
