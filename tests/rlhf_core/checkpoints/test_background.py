"""Verification while the run goes on: what is not verified does not count, and what fails is gone back from (F2)."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from safetensors.torch import load_file, save_file

from rlhf_core.checkpoints import background
from rlhf_core.checkpoints.registry import Registry
from rlhf_core.checkpoints.stage import remaining_iterations, sound_policy, start_policy
from rlhf_core.data.events import read_events
from rlhf_core.errors import CheckpointError
from rlhf_core.runtime import close_runtime, open_runtime, prepare_run
from tests.rlhf_core.checkpoints.saving import save_next
from tests.tiny_run import tiny_config


@pytest.fixture
def runtime(world, tmp_path):
    settings = tiny_config(world, tmp_path, checkpoints={"verify": "background"})
    folder = prepare_run(settings, resume=False)
    yield open_runtime(folder.path)
    close_runtime(folder.path)


def break_weights(policy) -> None:
    file = policy.path / "policy" / "model.safetensors"
    save_file({name: tensor + 0.05 for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})


def status(runtime, step: int) -> str:
    return Registry(runtime.folder).entry(step).status


def test_a_checkpoint_counts_when_its_verification_has_ended_and_the_gate_waits_for_it(runtime):
    start = start_policy(runtime)
    assert status(runtime, 0) == "promoted"
    saved = save_next(runtime, start)
    assert status(runtime, 1) == "saved"
    with pytest.raises(CheckpointError, match="not verified"):
        Registry(runtime.folder).promote(1, 0.5)
    assert sound_policy(runtime, wait=True) == saved
    assert status(runtime, 1) == "verified"
    Registry(runtime.folder, runtime.lock).promote(1, 0.5)


def test_damage_found_later_sends_the_run_back_and_the_iterations_are_done_again(runtime):
    first = save_next(runtime, start_policy(runtime))
    sound_policy(runtime, wait=True)
    second = save_next(runtime, first)
    background._at_work.pop(second.path).process.wait()
    break_weights(second)
    assert sound_policy(runtime, wait=True) == first
    assert status(runtime, 2) == "damaged"
    event = read_events(runtime.folder)[-1]
    assert event["kind"] == "checkpoint_fallback" and "going on from checkpoint 1" in event["message"]
    assert list(remaining_iterations(runtime.folder, runtime.config, 1)) == [2]
    again = save_next(runtime, first)
    background._at_work.pop(again.path).process.wait()
    break_weights(again)
    with pytest.raises(CheckpointError, match=r"damaged again after it had been done anew.*on another"):
        sound_policy(runtime, wait=True)


def test_the_process_itself_finds_damage_and_says_where(runtime):
    first = save_next(runtime, start_policy(runtime))
    background._at_work.pop(first.path).process.wait()
    weights = first.path / "policy" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    entry = Registry(runtime.folder).entry(1)
    model = runtime.config.model
    background.start_verification(first.path, model, manifest_sha256=entry.manifest_sha256)
    found = background.verdict(first.path, model, manifest_sha256=entry.manifest_sha256, wait=True)
    assert found is not None and str(weights) in (found.reason or "") and "bytes" in found.reason


def test_a_verifier_that_was_killed_gives_no_verdict_so_it_is_done_here(runtime):
    first = save_next(runtime, start_policy(runtime))
    verifier = background._at_work[first.path].process
    verifier.kill()
    assert sound_policy(runtime, wait=True) == first
    assert verifier.returncode == -9 and status(runtime, 1) == "verified"


def test_nobody_waits_for_a_verdict_before_the_gate(runtime, tmp_path):
    first = save_next(runtime, start_policy(runtime))
    background._at_work.pop(first.path).process.wait()
    asleep = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        with (tmp_path / "said").open("w+b") as output:
            background._at_work[first.path] = background._Verifier(asleep, output)
            assert sound_policy(runtime) == first
            assert status(runtime, 1) == "saved"
    finally:
        background._at_work.pop(first.path)
        asleep.kill()
        asleep.wait()


def test_a_run_that_died_before_the_verdict_verifies_when_it_starts_again(runtime):
    first = save_next(runtime, start_policy(runtime))
    background._at_work.pop(first.path).process.wait()
    close_runtime(runtime.folder.path)
    again = open_runtime(runtime.folder.path)
    assert start_policy(again) == first and status(again, 1) == "verified"


def test_hashes_alone_still_refuse_what_is_no_optimizer_and_the_start_verifies_the_rest(world, tmp_path):
    folder = prepare_run(tiny_config(world, tmp_path, checkpoints={"verify": "hashes"}), resume=False)
    runtime = open_runtime(folder.path)
    try:
        start = start_policy(runtime)
        saved = save_next(runtime, start)
        assert status(runtime, 1) == "verified"
        shutil.rmtree(saved.path / "critic")
        assert start_policy(runtime) == start
    finally:
        close_runtime(folder.path)
