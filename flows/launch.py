"""Start a run from a terminal or a script: a server first, then the flow in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import httpx

from flows.console import say_errors_once
from flows.server import ServerHandle, ensure_server, using
from rlhf_core.errors import ServerError

if TYPE_CHECKING:
    from tasks.run import RunOutcome


def launch(
    config: str,
    *,
    run_name: str | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    echo: Callable[[str], None] = print,
) -> RunOutcome:
    """Run `post-training` here and now; its arguments are the flow's.

    Raises:
        ServerError: the configured Prefect server does not answer, and nothing has been started; or it stops to.
        RlhfError: whatever ended the run.
    """
    os.environ.setdefault("DO_NOT_TRACK", "1")
    server = ensure_server(echo)
    from flows.post_training import post_training  # after the server's check: it imports the whole stack

    say_errors_once()
    try:
        with using(server):
            return post_training(config=config, run_name=run_name, overrides=list(overrides), resume=resume)
    except httpx.HTTPError as error:
        if not is_about(server, error):
            raise
        raise ServerError(
            f"the Prefect server at {server.api_url} stopped answering while the run went on "
            f"({type(error).__name__}: {error}). "
            "See that it runs, then go on with `rlhf resume`; nothing saved is lost."
        ) from error


def is_about(server: ServerHandle, error: httpx.HTTPError) -> bool:
    """Whether a request to the server got no answer, or one that it cannot serve; others have other remedies."""
    if isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500:
        return False
    try:
        return str(error.request.url).startswith(server.api_url)
    except RuntimeError:  # httpx: the error knows no request
        return False
