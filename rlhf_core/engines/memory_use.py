"""How much of the memory that it may use this process uses (F4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from rlhf_core.errors import EngineError

_KIB = 1024


@dataclass(frozen=True)
class MemoryUse:
    """Bytes in use, and the most that there can be."""

    used_bytes: int
    limit_bytes: int

    @property
    def share(self) -> float:
        return self.used_bytes / self.limit_bytes


class MemoryWatch:
    """Keeps the highest use seen since it was last asked."""

    def __init__(self, read: Callable[[], MemoryUse]) -> None:
        """Take a reader of the present use; `memory_reader` gives that of a device."""
        self._read = read
        self._peak: MemoryUse | None = None

    def note(self) -> MemoryUse:
        """Read now, and return what was read."""
        use = self._read()
        if self._peak is None or use.share > self._peak.share:
            self._peak = use
        return use

    def take_peak(self) -> MemoryUse:
        """The highest use since the last call, this moment included; begins anew."""
        use = self.note()
        peak, self._peak = self._peak or use, None
        return peak


def memory_reader(device: torch.device) -> Callable[[], MemoryUse]:
    """The reader of a device: a GPU's greatest reserve since the last reading, or this process's resident memory."""
    return (lambda: _gpu_use(device)) if device.type == "cuda" else process_memory_use


def process_memory_use(root: Path = Path("/")) -> MemoryUse:
    """Resident memory against the tightest limit: of a control group above this process, or the machine's memory.

    Args:
        root: where `proc` and `sys` lie.

    Raises:
        EngineError: the system does not tell.
    """
    try:
        used = _kib_field(root / "proc/self/status", "VmRSS")
        total = _kib_field(root / "proc/meminfo", "MemTotal")
        return MemoryUse(used, min([total, *_group_limits(root)]))
    except (OSError, StopIteration, ValueError, IndexError) as error:
        raise EngineError(
            f"memory use cannot be read below {root}: {error!r}. Set memory.watch=false on a system without /proc."
        ) from error


def _kib_field(path: Path, name: str) -> int:
    line = next(line for line in path.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * _KIB


def _group_limits(root: Path) -> list[int]:
    """Limits of the process's control group and of those above it, in versions 1 and 2; none where there are none."""
    groups = root / "proc/self/cgroup"
    limits: list[int] = []
    for line in groups.read_text().splitlines() if groups.exists() else []:
        _, controllers, place = line.split(":", 2)
        if controllers not in ("", "memory") and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        folder = top / place.lstrip("/")
        for level in (folder, *folder.parents):
            file = level / name
            if file.is_file() and (text := file.read_text().strip()).isdigit():
                limits.append(int(text))
            if level == top:
                break
    return [limit for limit in limits if limit > 0]


def _gpu_use(device: torch.device) -> MemoryUse:
    used = torch.cuda.max_memory_reserved(device)
    torch.cuda.reset_peak_memory_stats(device)
    return MemoryUse(used, torch.cuda.get_device_properties(device).total_memory)
