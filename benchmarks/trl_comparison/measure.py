"""Wall time, CPU time and peak memory of named phases."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from pathlib import Path

_PAGE_BYTES = 4096
_SAMPLE_SECONDS = 0.01


class PhaseMeter:
    """`enter` ends the running phase and starts another; a thread samples the resident memory all the while."""

    def __init__(self) -> None:
        self._phase: str | None = None
        self._since = (0.0, 0.0)
        self._wall: dict[str, list[float]] = defaultdict(list)
        self._cpu: dict[str, list[float]] = defaultdict(list)
        self._peak: dict[str, int] = defaultdict(int)
        self._is_over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()

    def enter(self, phase: str | None) -> None:
        """Start `phase`; None stops the clock."""
        now = (time.perf_counter(), time.process_time())
        if self._phase is not None:
            self._wall[self._phase].append(now[0] - self._since[0])
            self._cpu[self._phase].append(now[1] - self._since[1])
        self._phase, self._since = phase, now

    def write(self, path: str, *, skipped: int) -> None:
        """Write means per update of each phase, without the first `skipped` updates, and peaks over all of them."""
        self.enter(None)
        self._is_over.set()
        self._sampler.join()
        phases = {
            name: {
                "wall_seconds": _mean(self._wall[name][skipped:]),
                "cpu_seconds": _mean(self._cpu[name][skipped:]),
                "peak_gib": self._peak[name] / 2**30,
            }
            for name in self._wall
        }
        Path(path).write_text(json.dumps(phases, indent=1))

    def _sample(self) -> None:
        while not self._is_over.wait(_SAMPLE_SECONDS):
            phase = self._phase
            if phase is not None:
                resident = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
                self._peak[phase] = max(self._peak[phase], resident)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
