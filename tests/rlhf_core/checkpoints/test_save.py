"""A checkpoint is whole and verified, or it is not there."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlhf_core.checkpoints import manifest
from rlhf_core.checkpoints.registry import Registry
from rlhf_core.checkpoints.save import new_reference, save_checkpoint
from rlhf_core.checkpoints.stage import start_policy
from rlhf_core.checkpoints.verify import verify_checkpoint
from rlhf_core.data.store import file_sha256
from rlhf_core.errors import CheckpointError, RunFolderError, RunLocked
from rlhf_core.runtime import open_runtime, prepare_run
from tests.rlhf_core.checkpoints.manifests import write_manifest
from tests.tiny_run import tiny_config


def test_the_sft_start_is_saved_verified_and_promoted_once(runtime):
    start = start_policy(runtime)
    verify_checkpoint(start.path, runtime.config.model)
    assert start_policy(runtime) == start
    registry = Registry(runtime.folder)
    assert (registry.promoted(), registry.best()) == (start, start)
    assert (runtime.folder.best / "config.json").exists()


def test_an_update_that_failed_half_way_is_undone_by_the_next_use(runtime):
    start = start_policy(runtime)
    workers = runtime.for_update(start)
    before = {name: tensor.clone() for name, tensor in workers.policy_model().state_dict().items()}
    with torch.no_grad():
        for parameter in workers.policy_model().parameters():
            parameter.add_(1.0)
    after = runtime.at(start).policy_model().state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_weights_that_say_something_else_than_when_saved_do_not_verify(runtime):
    start = start_policy(runtime)
    weights = start.path / "policy" / "model.safetensors"
    tensors = {name: tensor + 0.05 for name, tensor in load_file(weights).items()}
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="damaged"):
        verify_checkpoint(start.path, runtime.config.model)
    write_manifest(start.path)
    with pytest.raises(CheckpointError, match="does not reproduce the log-probs"):
        verify_checkpoint(start.path, runtime.config.model)


def test_a_save_that_fails_leaves_the_previous_checkpoint_current_and_no_rubbish(runtime, monkeypatch):
    start = start_policy(runtime)
    workers = runtime.at(start)

    def full(folder, done):
        (folder / "half").write_bytes(b"x")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(workers, "save", full)
    ref = new_reference(runtime, 1, start.control, {})
    with pytest.raises(RunFolderError, match="disk is full"):
        save_checkpoint(runtime, workers, ref, parent=0, experience_sha256="x")
    assert Registry(runtime.folder).current() == start
    assert [path.name for path in runtime.folder.checkpoints.iterdir() if path.is_dir()] == ["step-000000"]


def test_a_run_that_was_taken_over_saves_nothing_more(runtime):
    start = start_policy(runtime)
    runtime.folder.lock.write_text('{"epoch": 99, "pid": 1, "host": "other"}')
    with pytest.raises(RunLocked, match="process 1 on other"):
        save_checkpoint(
            runtime, runtime.at(start), new_reference(runtime, 1, start.control, {}), parent=0, experience_sha256="x"
        )
    assert Registry(runtime.folder).current() == start


def test_a_name_in_use_and_other_settings_are_refused(world, tmp_path):
    folder = prepare_run(tiny_config(world, tmp_path), resume=False)
    (folder.checkpoints / "step-000001").mkdir(parents=True)
    with pytest.raises(RunFolderError, match=r"already holds a run.*rlhf resume"):
        prepare_run(tiny_config(world, tmp_path), resume=False)
    with pytest.raises(RunFolderError, match=r"other settings.*seed"):
        prepare_run(tiny_config(world, tmp_path, seed=5), resume=True)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("x")
    with pytest.raises(RunFolderError, match="is no run"):
        prepare_run(tiny_config(world, tmp_path, name="notes"), resume=True)
    with pytest.raises(RunFolderError, match="is a file"):
        prepare_run(tiny_config(world, tmp_path / "notes" / "mine.txt"), resume=False)
    with pytest.raises(RunFolderError, match="is no run"):
        open_runtime(tmp_path / "notes")


def test_a_save_reads_each_file_back_once(runtime, monkeypatch):
    """Hashing costs as much as writing: a second pass over a checkpoint that was hashed just now is a third of it."""
    policy = start_policy(runtime)
    hashed: list[str] = []
    monkeypatch.setattr(manifest, "file_sha256", lambda path: hashed.append(path.name) or file_sha256(path))
    ref = new_reference(runtime, 1, policy.control, {})
    saved = save_checkpoint(runtime, runtime.at(policy), ref, parent=0, experience_sha256=None)
    weights = sorted(path.name for path in saved.path.rglob("*.safetensors"))
    assert sorted(name for name in hashed if name.endswith(".safetensors")) == weights
