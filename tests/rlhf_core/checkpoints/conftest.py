"""A runtime on the tiny model, and a folder with three real checkpoints that tests may damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rlhf_core.checkpoints.stage import start_policy
from rlhf_core.data.store import RunFolder
from rlhf_core.runtime import close_runtime, open_runtime, prepare_run
from tests.rlhf_core.checkpoints.saving import save_next
from tests.tiny_model import make_tiny_world
from tests.tiny_run import tiny_config


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_tiny_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def runtime(world, tmp_path):
    folder = prepare_run(tiny_config(world, tmp_path), resume=False)
    yield open_runtime(folder.path)
    close_runtime(folder.path)


@pytest.fixture(scope="module")
def three_checkpoints(world, tmp_path_factory) -> RunFolder:
    """Steps 0 to 2 of a run, saved with optimizers that have taken steps; not to be changed."""
    folder = prepare_run(tiny_config(world, tmp_path_factory.mktemp("three")), resume=False)
    runtime = open_runtime(folder.path)
    policy = start_policy(runtime)
    for _ in range(2):
        policy = save_next(runtime, policy)
    close_runtime(folder.path)
    return folder


@pytest.fixture
def run_folder(three_checkpoints, tmp_path) -> RunFolder:
    """A copy of `three_checkpoints` at the same path's name, to be damaged."""
    return copy_run(three_checkpoints, tmp_path / "copy")


def copy_run(folder: RunFolder, into: Path) -> RunFolder:
    """Copy a run, with the paths in its registry and settings."""
    shutil.copytree(folder.path, into / folder.path.name, symlinks=True)
    copy = RunFolder(into / folder.path.name)
    for path in (copy.checkpoints / "REGISTRY.json", copy.config, copy.manifest):
        path.write_text(path.read_text().replace(str(folder.path.parent), str(into)))
    return copy
