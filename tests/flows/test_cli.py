"""The command line as a person uses it: what it says and returns for input that is wrong, and the next try."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from rlhf_core.config.load import load_config
from rlhf_core.data.store import RunFolder
from rlhf_core.recovery.lock import acquire_lock
from rlhf_core.runtime import prepare_run
from tests.flows.tiny_run import metrics_rows, settings, write_config
from tests.tiny_model import make_tiny_model

DATA, CONFIG, FOLDER = 3, 2, 6
"""Exit codes, as in the README."""


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    """Model folders that cannot be used."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "no_tokenizer": make_tiny_model(folder / "no_tokenizer", has_tokenizer=False),
        "no_template": make_tiny_model(folder / "no_template", has_chat_template=False),
    }


BAD_INPUT: dict[str, tuple[str, int, str]] = {
    "a data file that is missing": ("data.prompts.0.path=gone.jsonl", DATA, "no {data}/gone.jsonl"),
    "a data file without rows": ("data.prompts.0.path=empty.jsonl", DATA, "{data}/empty.jsonl has no rows"),
    "a column that is not there": ("data.prompts.0.columns.prompt=question", DATA, "line 1: there is no column"),
    "a benchmark that is missing": ("evaluation.benchmarks.0.path=gone.jsonl", DATA, "gone.jsonl"),
    "an unknown key": ("ppo.clip_rnge=0.2", CONFIG, "ppo.clip_rnge: unknown key; did you mean 'clip_range'?"),
    "a value out of range": ("ppo.clip_range=7", CONFIG, "ppo.clip_range: "),
    "a model folder that is missing": ("model.policy=./gone", CONFIG, "the model folder ./gone does not exist"),
    "a model without a tokenizer": ("model.policy={no_tokenizer}", CONFIG, "{no_tokenizer} has no tokenizer"),
    "a tokenizer without a template": ("model.policy={no_template}", CONFIG, "{no_template} has no chat template"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_wrong_input_is_one_message_and_the_corrected_run_may_have_the_same_name(case, rlhf, world, models, tmp_path):
    config = write_config(tmp_path, settings(world, tmp_path / "runs"))
    (world.data / "empty.jsonl").touch()
    override, code, words = (
        part.format(data=world.data, **models) if isinstance(part, str) else part for part in BAD_INPUT[case]
    )
    ended, out, err = rlhf("run", config, "--set", override)
    assert ended == code
    assert words in err
    assert err.count("error (") == 1 and "Traceback" not in err
    assert "report:" not in out
    corrected = load_config(config)
    prepare_run(corrected, resume=False)
    assert load_config(tmp_path / "runs" / "tiny" / "config.yaml") == corrected


@pytest.mark.slow
def test_a_run_goes_on_when_what_it_lacked_is_put_right(rlhf, world, tmp_path):
    shutil.copytree(world.data, tmp_path / "data")
    prompts = tmp_path / "data" / "prompts.jsonl"
    prompts.rename(tmp_path / "kept")
    changed = settings(world, tmp_path / "runs", rounds=1)
    config = write_config(tmp_path, changed | {"data": changed["data"] | {"root": str(tmp_path / "data")}})
    assert rlhf("run", config)[0] == DATA
    (tmp_path / "kept").rename(prompts)
    ended, out, _ = rlhf("resume", tmp_path / "runs" / "tiny")
    assert ended == 0
    assert "report: " in out
    assert rlhf("status", tmp_path / "runs" / "tiny")[0] == 0
    ended, _, err = rlhf("run", config)
    assert ended == FOLDER
    assert "already holds a run. Go on with it: `rlhf resume" in err


def test_check_counts_the_items_that_the_gate_will_have(rlhf, world, tmp_path):
    config = write_config(tmp_path, settings(world, tmp_path / "runs"))
    ended, out, err = rlhf("check", config, "--set", "evaluation.benchmarks.0.items=null")
    count = len((world.data / "hellaswag.jsonl").read_text().splitlines())
    said = " ".join(err.split())
    assert f"evaluation.benchmarks.facts: {count} items (in its files) cannot show a drop of 3.0%" in said
    assert ended == 0 and "tiny: valid; " in out


def test_only_the_gate_of_a_run_can_be_set_when_it_goes_on(rlhf, world, tmp_path):
    config = write_config(tmp_path, settings(world, tmp_path / "runs"))
    folder = prepare_run(load_config(config), resume=False)
    ended, _, err = rlhf("resume", folder.path, "--set", "seed=7", "--set", "reward_model.gate.min_accuracy=0.6")
    assert ended == FOLDER
    assert "holds a run with other settings (they differ in: seed)" in err


def test_a_run_of_another_process_is_left_alone(rlhf, world, tmp_path):
    config = write_config(tmp_path, settings(world, tmp_path / "runs"))
    folder = prepare_run(load_config(config), resume=False)
    lock = acquire_lock(folder)
    before = folder.config.read_bytes()
    for arguments in (["run", config, "--set", "seed=7"], ["resume", folder.path]):
        ended, _, err = rlhf(*arguments)
        assert ended == FOLDER
        assert f"{folder.path} is in use by process {os.getpid()} on " in err
    lock.release()
    assert folder.config.read_bytes() == before


@pytest.mark.parametrize("command", ["resume", "status", "report"])
def test_a_folder_that_is_no_run_is_named(command, rlhf, tmp_path):
    ended, _, err = rlhf(command, tmp_path / "nothing")
    assert ended == FOLDER
    assert f"{tmp_path}/nothing is no run: it has no config.yaml" in err
    assert not (tmp_path / "nothing").exists()


def test_a_home_that_is_a_file_is_refused(rlhf, world, tmp_path):
    (tmp_path / "file").touch()
    config = write_config(tmp_path, settings(world, tmp_path / "file"))
    ended, _, err = rlhf("run", config)
    assert ended == FOLDER
    assert "Set `home` to a folder" in err


@pytest.fixture
def disk(tmp_path) -> Generator[Callable[[str], Path]]:
    """Mount a small disk, or change how it is mounted."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options: str) -> Path:
        again = "remount," if os.path.ismount(place) else ""
        command = ["mount", "-t", "tmpfs", "-o", again + options, "tmpfs", str(place)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("no disk may be mounted here")
        return place

    yield mount
    if os.path.ismount(place):
        subprocess.run(["umount", "--lazy", str(place)], check=True)  # loaded weights may still be mapped


@pytest.mark.slow
@pytest.mark.parametrize("size", ["4k", "700k"])
def test_a_full_disk_ends_the_run_and_with_space_it_goes_on(size, rlhf, world, tmp_path, disk):
    """4 KiB: not even the settings fit; 700 KiB: a checkpoint does not, and its writer has errors of its own."""
    place = disk(f"size={size}")
    config = write_config(tmp_path, settings(world, place / "runs", rounds=1))
    ended, _, err = rlhf("run", config)
    assert ended == FOLDER
    assert "the disk is full. Free some space" in err
    assert err.count("error (") == 1
    disk("size=40m")
    began = RunFolder(place / "runs" / "tiny").config.exists()
    assert began == (size == "700k")
    ended, _, err = rlhf(*(["resume", place / "runs" / "tiny"] if began else ["run", config]))
    assert ended == 0, err
    assert len(metrics_rows(place / "runs" / "tiny")) == 1
    assert not list(place.rglob("*partial*"))


def test_a_read_only_disk_is_refused(rlhf, world, tmp_path, disk):
    place = disk("size=1m")
    config = write_config(tmp_path, settings(world, place / "runs"))
    folder = prepare_run(load_config(config), resume=False)
    disk("ro")
    for arguments in (["run", config, "--name", "other"], ["run", config], ["resume", folder.path]):
        ended, _, err = rlhf(*arguments)
        assert ended == FOLDER
        assert "the file system is read-only. Set `home` to a folder that can be written" in err


@pytest.mark.faults("disk full between two files of a run")
@pytest.mark.long_fault
def test_a_disk_that_fills_between_two_files_loses_nothing(rlhf, world, tmp_path, monkeypatch):
    config = write_config(tmp_path, settings(world, tmp_path / "runs", rounds=1))
    calls, fsync = [0], os.fsync

    def fills_up(descriptor: int) -> None:
        calls[0] += 1
        if calls[0] > 90:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fills_up)
        ended, _, err = rlhf("run", config)
    assert ended == FOLDER and "the disk is full" in err
    assert rlhf("resume", tmp_path / "runs" / "tiny")[0] == 0
    assert calls[0] > 90
