"""How many items a configuration's benchmarks have, also where the quickstart's world has yet to be made."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rlhf_core.config.run import RunConfig
from rlhf_core.evaluation.local_tasks import available_items
from rlhf_core.quickstart.resolve import DATA
from rlhf_core.quickstart.world import World, WorldSettings


def benchmark_items(config: RunConfig) -> dict[str, int]:
    """Items in the files of each benchmark with a local path, by its name.

    Raises:
        DataError: a file is missing, empty or malformed.
    """
    benchmarks = config.evaluation.benchmarks
    if str(config.data.root) != DATA:
        return available_items(benchmarks, config.data.root)
    with tempfile.TemporaryDirectory() as folder:
        World(WorldSettings(), seed=0).write(Path(folder))  # what the cache will hold; it takes no training
        return available_items(benchmarks, Path(folder))
