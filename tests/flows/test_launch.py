"""A run whose server dies is one clear error, and goes on where it stopped."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, get_current_settings, temporary_settings

from flows.launch import is_about
from flows.server import ServerHandle
from rlhf_core.engines.protocols import Scorer
from rlhf_core.errors import ServerError
from rlhf_core.runtime import Runtime
from tests.flows.mortal_server import MortalServer, mortal_server
from tests.flows.tiny_run import metrics_rows, settings, write_config


@dataclass
class DeadlyScorer:
    """A scorer at whose second call, the one of the first iteration, the server dies."""

    inner: Scorer
    server: MortalServer
    calls: list[int] = field(default_factory=list)

    def score(self, rows: Sequence[Mapping[str, Any]]) -> list[float]:
        self.calls.append(len(rows))
        if len(self.calls) == 2:
            self.server.die()
        return self.inner.score(rows)


@pytest.fixture
def server() -> Generator[MortalServer]:
    """Stands before the test server; a dead one is noticed at once, not after a minute of tries."""
    address = urlsplit(get_current_settings().api.url)
    with mortal_server(address.hostname, address.port) as server:
        mine = {PREFECT_API_URL: f"http://127.0.0.1:{server.port}/api", PREFECT_CLIENT_MAX_RETRIES: 0}
        with temporary_settings(mine):
            yield server


def test_a_run_whose_server_dies_is_one_error_and_goes_on_with_a_server(rlhf, server, world, tmp_path, monkeypatch):
    calls: list[int] = []
    build = Runtime.scorer
    monkeypatch.setattr(Runtime, "scorer", lambda runtime: DeadlyScorer(build(runtime), server, calls))
    changed = settings(world, tmp_path / "runs", rounds=1, evaluation={"held_out_rollouts": 8})
    config = write_config(tmp_path, changed)
    folder = tmp_path / "runs" / "tiny"
    ended, out, err = rlhf("run", config)
    assert ended == ServerError.exit_code == 10
    assert f"the Prefect server at http://127.0.0.1:{server.port}/api stopped answering while the run went on" in err
    assert err.count("error (") == 1 and err.splitlines()[-1].startswith("error (ServerError): ")
    assert "`rlhf resume" in err and "report:" not in out
    assert len(calls) == 2
    server.live()
    ended, out, err = rlhf("resume", folder)
    assert ended == 0, err
    assert "best policy: " in out and len(metrics_rows(folder)) == 1
    assert len(calls) == 3, "what was scored before the server died was scored again"


@pytest.mark.parametrize(
    ("url", "is_the_servers"), [("http://127.0.0.1:4200/api/flows/", True), ("https://hub.example/api/models", False)]
)
def test_only_a_request_to_the_server_speaks_of_it(url, is_the_servers):
    handle = ServerHandle(api_url="http://127.0.0.1:4200/api", ui_url="http://127.0.0.1:4200")
    assert is_about(handle, httpx.ConnectError("refused", request=httpx.Request("GET", url))) == is_the_servers
    assert not is_about(handle, httpx.ConnectError("refused"))
