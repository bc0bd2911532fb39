"""Every file of the newest checkpoint, damaged in every way, is refused by name, and the one before it is used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlhf_core.checkpoints.registry import Registry
from rlhf_core.checkpoints.stage import start_policy
from rlhf_core.checkpoints.trainer_files import require_matching_optimizers
from rlhf_core.checkpoints.verify import verify_checkpoint
from rlhf_core.data.events import read_events
from rlhf_core.data.store import MANIFEST, write_json
from rlhf_core.errors import CheckpointError
from rlhf_core.recovery.lock import acquire_lock
from rlhf_core.runtime import close_runtime, open_runtime, stored_config
from tests.rlhf_core.checkpoints.manifests import write_manifest
from tests.rlhf_core.checkpoints.saving import PROCESSES, save_with_little_room


def cut(count: int):
    return lambda file, other: file.write_bytes(file.read_bytes()[:-count])


def flip_a_bit(file: Path, other: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(bytes(content))


DAMAGES = {
    "cut by a byte": cut(1),
    "last 100 bytes gone": cut(100),
    "a bit flipped": flip_a_bit,
    "missing": lambda file, other: file.unlink(),
    "of another checkpoint": lambda file, other: shutil.copyfile(other, file),
    "emptied": lambda file, other: file.write_bytes(b""),
}


@pytest.mark.faults("a damaged file of the newest checkpoint")
@pytest.mark.parametrize("damage", DAMAGES)
def test_case_C04_any_damage_to_any_file_is_refused_by_name_and_the_one_before_is_used(run_folder, damage):
    newest = run_folder.checkpoints / "step-000002"
    files = sorted(path for path in newest.rglob("*") if path.is_file())
    assert len(files) > 12 and {MANIFEST, "state.json"} < {path.name for path in files}
    registry = run_folder.checkpoints / "REGISTRY.json"
    known, tried = registry.read_bytes(), 0
    for file in files:
        other = run_folder.checkpoints / "step-000001" / file.relative_to(newest)
        content = file.read_bytes()
        DAMAGES[damage](file, other)
        if file.exists() and file.read_bytes() == content:
            continue  # the tokenizer's files are the same in every checkpoint
        tried += 1
        used = Registry(run_folder).usable_current()
        assert used is not None and used.step == 1, file
        event = read_events(run_folder)[-1]
        name = str(newest) if file.name == MANIFEST else str(file)
        assert event["kind"] == "checkpoint_fallback" and name in event["message"], file
        entry = Registry(run_folder).entry(2)
        assert entry is not None and entry.status == "damaged" and name in (entry.reason or "")
        file.write_bytes(content)
        registry.write_bytes(known)
        run_folder.events.unlink()
    assert tried == len(files) if damage != "of another checkpoint" else tried >= 6


def test_case_C06_moments_of_another_model_do_not_verify_even_where_every_hash_fits(run_folder):
    newest = run_folder.checkpoints / "step-000002"
    file = newest / "trainer" / "critic_optimizer.safetensors"
    moments = load_file(file)
    name = next(key for key, tensor in moments.items() if tensor.ndim == 2)
    model = stored_config(run_folder.path).model

    save_file(moments | {name: moments[name][:-1].contiguous()}, file)
    write_manifest(newest)
    with pytest.raises(CheckpointError, match=r"critic_optimizer\.safetensors: .* has shape .* needs"):
        verify_checkpoint(newest, model)
    save_file(moments | {"strange.weight/exp_avg": torch.zeros(3)}, file)
    write_manifest(newest)
    with pytest.raises(CheckpointError, match="has no such parameter"):
        verify_checkpoint(newest, model)
    save_file({}, file)
    write_manifest(newest)
    with pytest.raises(CheckpointError, match=r"no moments, but state\.json says .* 2 steps"):
        verify_checkpoint(newest, model)
    file.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"critic_optimizer\.safetensors cannot be read"):
        require_matching_optimizers(newest)


@pytest.mark.faults("an optimizer file of another model")
def test_case_C06_a_run_goes_on_from_the_one_before_where_the_moments_are_of_another_model(run_folder):
    newest = run_folder.checkpoints / "step-000002"
    file = newest / "trainer" / "actor_optimizer.safetensors"
    save_file({name: tensor for name, tensor in load_file(file).items() if "layers.1." in name}, file)
    moments = load_file(file)
    name = next(key for key, tensor in moments.items() if tensor.ndim == 2)
    save_file(moments | {name: torch.zeros(3, 5)}, file)
    state = json.loads((run_folder.checkpoints / "REGISTRY.json").read_text())
    state["checkpoints"]["2"]["manifest_sha256"] = write_manifest(newest)
    write_json(run_folder.checkpoints / "REGISTRY.json", state)
    runtime = open_runtime(run_folder.path)
    try:
        start = start_policy(runtime)
        assert start.step == 1
        assert runtime.at(start).trainer.actor_optimizer.steps == 1
    finally:
        close_runtime(run_folder.path)


@pytest.mark.faults("disk full while saving")
def test_a_save_without_room_is_a_typed_error_and_leaves_the_last_checkpoint_and_nothing_half(run_folder):
    newest = Registry(run_folder).current()
    largest = max(path.stat().st_size for path in newest.path.rglob("*"))
    for allowed in (largest // 2, 600):
        here, there = PROCESSES.Pipe()
        process = PROCESSES.Process(target=save_with_little_room, args=(run_folder.path, allowed, there))
        process.start()
        assert here.poll(120)
        said = here.recv()
        process.join(60)
        assert said.startswith("RunFolderError: ") and "larger than allowed" in said
        assert Registry(run_folder).usable_current() == newest
    acquire_lock(run_folder).release()
    left = {path.name for path in run_folder.checkpoints.iterdir()}
    assert left == {"REGISTRY.json", "step-000000", "step-000001", "step-000002"}
