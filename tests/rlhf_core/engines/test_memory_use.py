"""Memory in use against the tightest limit, from a made-up /proc and /sys, and from this machine's."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_core.engines.memory_use import MemoryUse, MemoryWatch, process_memory_use
from rlhf_core.errors import EngineError

MIB = 2**20


def system(root: Path, *, cgroup: str = "", limits: dict[str, str] | None = None) -> Path:
    files = {
        "proc/self/status": "Name:\tpython\nVmRSS:\t  102400 kB\n",
        "proc/meminfo": "MemTotal:       1024000 kB\nMemFree:  5 kB\n",
        "proc/self/cgroup": cgroup,
    } | (limits or {})
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "limits", "limit"),
    [
        ("", {}, 1000 * MIB),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "max\n"}, 1000 * MIB),
        ("0::/\n", {"sys/fs/cgroup/memory.max": f"{500 * MIB}\n"}, 500 * MIB),
        # A group above is tighter than the process's own.
        ("0::/a/b\n", {"sys/fs/cgroup/a/memory.max": "209715200", "sys/fs/cgroup/a/b/memory.max": "max"}, 200 * MIB),
        ("5:cpu:/x\n4:memory:/x\n", {"sys/fs/cgroup/memory/x/memory.limit_in_bytes": f"{300 * MIB}"}, 300 * MIB),
        ("4:memory:/\n", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, 1000 * MIB),
    ],
)  # fmt: skip
def test_the_tightest_limit_counts(tmp_path, cgroup, limits, limit):
    use = process_memory_use(system(tmp_path, cgroup=cgroup, limits=limits))
    assert use == MemoryUse(100 * MIB, limit)


def test_this_machine_tells():
    before = process_memory_use()
    held = bytearray(64 * MIB)
    held[::4096] = b"x" * len(held[::4096])
    assert process_memory_use().used_bytes - before.used_bytes > 48 * MIB
    assert 0 < before.share < 1


def test_a_system_that_does_not_tell_is_an_error_with_the_way_out(tmp_path):
    with pytest.raises(EngineError, match=r"memory\.watch=false"):
        process_memory_use(tmp_path)


def test_the_watch_keeps_the_highest_use_until_it_is_taken():
    uses = iter(MemoryUse(used, 100) for used in (40, 90, 50, 30))
    watch = MemoryWatch(lambda: next(uses))
    assert [watch.note().share, watch.note().share] == [0.4, 0.9]
    assert watch.take_peak().share == 0.9
    assert watch.take_peak().share == 0.3
