"""Runs a server and sees to it that nothing of it is left: `guardian.py PARENT_PID GRACE_SECONDS COMMAND…`.

It leads a session of its own. When the server ends, when this process is told to end, or when its parent is gone
(killed or not), all of the session's processes end, this one last.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

_POLL_SECONDS = 0.2
_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, grace, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    told: list[int] = []
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, lambda number, _: told.append(number))
    prctl = ctypes.CDLL(None).prctl
    server = subprocess.Popen(command, preexec_fn=lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))
    try:
        while server.poll() is None and not told and os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        if server.poll() is None:
            server.terminate()
            server.wait(grace)
    except subprocess.TimeoutExpired:
        print(f"the server did not end within {grace:g} s and is killed", flush=True)
    finally:
        print(f"server ended: exit code {server.poll()}", flush=True)
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
