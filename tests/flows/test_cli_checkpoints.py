"""`rlhf checkpoints` as a person uses it."""

from __future__ import annotations

import pytest

from rlhf_core.checkpoints.stage import start_policy
from rlhf_core.data.store import RunFolder
from rlhf_core.runtime import close_runtime, open_runtime, prepare_run
from tests.rlhf_core.checkpoints.conftest import copy_run
from tests.rlhf_core.checkpoints.saving import save_next
from tests.tiny_run import tiny_config


@pytest.fixture(scope="module")
def saved(world, tmp_path_factory) -> RunFolder:
    folder = prepare_run(tiny_config(world, tmp_path_factory.mktemp("saved")), resume=False)
    runtime = open_runtime(folder.path)
    save_next(runtime, start_policy(runtime))
    close_runtime(folder.path)
    return folder


@pytest.fixture
def run_folder(saved, tmp_path) -> RunFolder:
    return copy_run(saved, tmp_path / "copy")


def test_list_verify_rollback_and_export_of_a_whole_run(rlhf, run_folder, tmp_path):
    ended, out, _ = rlhf("checkpoints", "list", run_folder.path)
    lines = out.splitlines()
    assert ended == 0 and "KL, nats" in lines[0]
    assert lines[1].split()[:4] == ["0", "promoted", "promoted,", "best"]
    assert lines[2].split()[:3] == ["1", "verified", "current"]
    assert f"1: {run_folder.checkpoints / 'step-000001'}" in lines
    assert rlhf("checkpoints", "verify", run_folder.path, "--all")[:2] == (0, "0: whole\n1: whole\n")
    ended, out, _ = rlhf("checkpoints", "rollback", run_folder.path, "--to", "0")
    assert ended == 0 and "current: checkpoint 0; abandoned: 1" in out
    assert f"`rlhf resume {run_folder.path}` goes on with iteration 2, round 1" in out
    ended, out, _ = rlhf("checkpoints", "export", run_folder.path, tmp_path / "out", "--step", "1")
    assert ended == 0 and out.strip() == str(tmp_path / "out")
    ended, _, err = rlhf("checkpoints", "export", run_folder.path, tmp_path / "out")
    assert ended == 6 and "is not empty" in err


def test_verify_fails_for_a_damaged_one_and_the_list_says_so(rlhf, run_folder):
    weights = run_folder.checkpoints / "step-000001" / "critic" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    ended, out, err = rlhf("checkpoints", "verify", run_folder.path)
    assert ended == 7 and f"1: damaged: {weights}" in out and "damaged: 1" in err
    assert "damaged" in rlhf("checkpoints", "list", run_folder.path)[1]


@pytest.mark.parametrize("command", [["list"], ["verify"], ["rollback", "--to", "0"], ["export", "out"]])
def test_a_folder_that_is_no_run_is_named(command, rlhf, tmp_path):
    name, *rest = command
    ended, _, err = rlhf("checkpoints", name, tmp_path / "nothing", *rest)
    assert ended == 6 and "is no run" in err
