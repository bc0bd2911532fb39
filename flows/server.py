"""The Prefect server that a run reports to: the configured one, or a local one that is started for it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings
from pydantic import BaseModel, ConfigDict

from rlhf_core.errors import ServerError

HEALTH_SECONDS = 5.0
"""How long a server may take to answer that it is well."""
START_SECONDS = 120.0
"""How long a new server may take to come up; 8 s are usual."""
STATE_FILE = "rlhf-server.json"
LOG_FILE = "rlhf-server.log"

Echo = Callable[[str], None]


class ServerHandle(BaseModel):
    """A server that answers. `pid` is that of a server started by this project, None for a configured one."""

    model_config = ConfigDict(frozen=True)

    api_url: str
    ui_url: str
    pid: int | None = None


def ensure_server(echo: Echo = print) -> ServerHandle:
    """Return a server that answers: the configured one, the local one that runs already, or a new local one.

    A local server listens on loopback only and stays up afterwards, so that the run can be looked at.

    Raises:
        ServerError: the configured server does not answer, or a local one does not come up.
    """
    configured = get_current_settings().api.url
    server = _local_server(echo) if configured is None else _configured_server(configured)
    echo(f"Prefect UI: {server.ui_url}")
    return server


@contextmanager
def using(server: ServerHandle) -> Generator[None]:
    """Let this process's flows report to the server."""
    with temporary_settings({PREFECT_API_URL: server.api_url}):
        yield


def stop_server(echo: Echo = print) -> bool:
    """Stop the local server that `ensure_server` started; False when none runs."""
    with _one_at_a_time():
        server = _running_server()
        _state_file().unlink(missing_ok=True)
        if server is None or server.pid is None:
            echo("no local Prefect server of this project is running")
            return False
        os.kill(server.pid, signal.SIGTERM)
        deadline = time.monotonic() + 20
        while _answers(server.api_url) is None and time.monotonic() < deadline:
            time.sleep(0.2)
    echo(f"stopped the local Prefect server (process {server.pid})")
    return True


def _configured_server(api_url: str) -> ServerHandle:
    with temporary_settings({PREFECT_API_URL: api_url}):
        fault = _answers(api_url)
    if fault is not None:
        raise ServerError(
            f"the Prefect server at {api_url} does not answer ({fault}). It comes from PREFECT_API_URL or the active "
            "Prefect profile. Start it (`prefect server start`) or correct the address; or unset it "
            "(`unset PREFECT_API_URL`, `prefect config unset PREFECT_API_URL`), and a local server is started."
        )
    return ServerHandle(api_url=api_url, ui_url=get_current_settings().ui_url or api_url.removesuffix("/api"))


def _local_server(echo: Echo) -> ServerHandle:
    with _one_at_a_time():
        running = _running_server()
        if running is not None:
            return running
        echo("starting a local Prefect server (it stays up; stop it with `rlhf server stop`) ...")
        server = _start_server()
        _state_file().write_text(server.model_dump_json())
        return server


def _start_server() -> ServerHandle:
    port = _free_port()
    log = _home() / LOG_FILE
    address = f"http://127.0.0.1:{port}"
    # The UI's own default is port 4200, whatever port the server listens on.
    settings = {
        "PREFECT_SERVER_UI_API_URL": f"{address}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | settings,
            start_new_session=True,
        )
    server = ServerHandle(api_url=f"{address}/api", ui_url=address, pid=process.pid)
    deadline = time.monotonic() + START_SECONDS
    while (fault := _answers(server.api_url)) is not None:
        code = process.poll()
        if code is None and time.monotonic() < deadline:
            time.sleep(0.3)
            continue
        if code is None:
            process.terminate()
        late = f"did not answer within {START_SECONDS:.0f} s ({fault})"
        what = late if code is None else f"ended with code {code}"
        raise ServerError(
            f"the local Prefect server {what}. Its output is in {log}. Mend what it names, or start a server yourself "
            "(`prefect server start`) and set PREFECT_API_URL to its address."
        )
    return server


def _running_server() -> ServerHandle | None:
    """The server in the state file, when it still lives and answers."""
    try:
        server = ServerHandle.model_validate(json.loads(_state_file().read_text()))
    except (FileNotFoundError, ValueError):
        return None
    if server.pid is None or not _is_alive(server.pid) or _answers(server.api_url) is not None:
        return None
    return server


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _answers(api_url: str) -> str | None:
    """None when the server says that it is well, else what went wrong."""
    with (
        temporary_settings({PREFECT_API_URL: api_url}),
        get_client(httpx_settings={"timeout": HEALTH_SECONDS}, sync_client=True) as client,
    ):
        fault = client.api_healthcheck()
    return None if fault is None else f"{type(fault).__name__}: {fault}"


def _free_port() -> int:
    """The usual port when it is free, so that the link stays the same from run to run; else any."""
    for port in (4200, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise ServerError(
        "no port of 127.0.0.1 is free for a local Prefect server. Start one yourself, set PREFECT_API_URL."
    )


def _home() -> Path:
    home = get_current_settings().home
    home.mkdir(parents=True, exist_ok=True)
    return home


def _state_file() -> Path:
    return _home() / STATE_FILE


@contextmanager
def _one_at_a_time() -> Generator[None]:
    """Two runs that start together share one server."""
    with (_home() / f"{STATE_FILE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
