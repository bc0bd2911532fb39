"""The flow in its own process: started, found by what it leaves running, and gone on with."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.conftest import RLHF, ROOT

STARTS = 240.0


@contextmanager
def started(environment: dict[str, str], log: Path, *arguments: object) -> Generator[subprocess.Popen[bytes]]:
    """`rlhf …` at work; ended at the end if it still is."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*RLHF, *map(str, arguments)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(30)


def wait_for(path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + STARTS
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.005)


def marked(mark: str) -> dict[int, str]:
    """Living processes in whose environment the mark stands, as their parents gave it to them, and their commands."""
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended meanwhile
            continue
    return {pid: command for pid, command in found.items() if command}
