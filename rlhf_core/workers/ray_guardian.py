"""Ends what a process leaves of its local Ray when it is killed or leaves it: `ray_guardian.py PARENT_PID`.

Ray's main processes end with the one that started them. The raylet's children, Ray's agents, then try for 60 s to tell
a control store that is gone as well. So this process, in a session of its own, remembers them and kills them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil

_POLL_SECONDS = 0.5


def start() -> subprocess.Popen[bytes]:
    """A guardian of this process; it ends when told to, or after this process did."""
    return subprocess.Popen(
        [sys.executable, __file__, str(os.getpid())], stdin=subprocess.DEVNULL, start_new_session=True
    )


def main() -> None:
    parent = int(sys.argv[1])
    known: set[psutil.Process] = set()
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    while not told and os.getppid() == parent:
        with suppress(psutil.Error):
            known = _below_raylets(parent) or known
        time.sleep(_POLL_SECONDS)
    for process in known:
        with suppress(psutil.Error):  # it has ended, or its number is another process's now
            process.kill()


def _below_raylets(parent: int) -> set[psutil.Process]:
    raylets = [child for child in psutil.Process(parent).children() if child.name() == "raylet"]
    return {process for raylet in raylets for process in raylet.children(recursive=True)}


if __name__ == "__main__":
    main()
