"""Start a run from a terminal or a script: a server first, then the flow in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from flows.server import ensure_server, using

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
        ServerError: the configured Prefect server does not answer; nothing has been started.
        RlhfError: whatever ended the run.
    """
    os.environ.setdefault("DO_NOT_TRACK", "1")
    server = ensure_server(echo)
    from flows.post_training import post_training  # after the server's check: it imports the whole stack

    with using(server):
        return post_training(config=config, run_name=run_name, overrides=list(overrides), resume=resume)
