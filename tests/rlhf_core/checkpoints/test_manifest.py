"""Files are forced and hashed while others are written, and the manifest says what is there in the end."""

from __future__ import annotations

import pytest

from rlhf_core.checkpoints import manifest
from rlhf_core.checkpoints.manifest import ManifestWriter, require_whole
from rlhf_core.checkpoints.save import new_reference, save_checkpoint
from rlhf_core.checkpoints.stage import start_policy
from rlhf_core.data.store import MANIFEST, read_json


def test_a_file_that_changes_after_its_report_is_taken_as_it_is_in_the_end(tmp_path):
    (tmp_path / "part").mkdir()
    (tmp_path / "early").write_text("first")
    (tmp_path / "part" / "unreported").write_text("never told of")
    with ManifestWriter(tmp_path) as writer:
        writer.add(tmp_path / "early")
        (tmp_path / "early").write_text("second and longer")
        sha = writer.finish()
    require_whole(tmp_path, manifest_sha256=sha)
    assert set(read_json(tmp_path / MANIFEST)["files"]) == {"early", "part/unreported"}


def test_a_file_that_cannot_be_forced_to_the_disk_leaves_no_manifest(tmp_path, monkeypatch):
    def broken(path):
        raise OSError(5, "Input/output error")

    (tmp_path / "weights").write_text("x")
    monkeypatch.setattr(manifest, "fsync_path", broken)
    with pytest.raises(OSError, match="Input/output"), ManifestWriter(tmp_path) as writer:
        writer.add(tmp_path / "weights")
        writer.finish()
    assert not (tmp_path / MANIFEST).exists()


def test_every_file_is_forced_before_the_manifest_and_large_ones_before_the_last_is_written(runtime, monkeypatch):
    start = start_policy(runtime)
    workers = runtime.at(start)
    forced, at_the_end_of_writing, when_named = [], [], []
    force, write, infer = manifest.fsync_path, manifest.write_json, workers.micro_inference
    monkeypatch.setattr(manifest, "fsync_path", lambda path: (force(path), forced.append(path.name)))

    def infer_late():
        at_the_end_of_writing.extend(reported)
        return infer()

    def write_last(path, value):
        when_named.extend(forced)
        write(path, value)

    reported = []
    add = ManifestWriter.add
    monkeypatch.setattr(ManifestWriter, "add", lambda self, path: (reported.append(path.name), add(self, path)))
    monkeypatch.setattr(workers, "micro_inference", infer_late)
    monkeypatch.setattr(manifest, "write_json", write_last)
    ref = new_reference(runtime, 1, start.control, {})
    saved = save_checkpoint(runtime, workers, ref, parent=0, experience_sha256="x")
    files = [path.name for path in saved.path.rglob("*") if path.is_file() and path.name != MANIFEST]
    assert sorted(name for name in when_named if name in files) == sorted(files)
    assert {"actor_optimizer.safetensors", "critic_optimizer.safetensors"} <= set(at_the_end_of_writing)
    assert at_the_end_of_writing.count("model.safetensors") == 2
