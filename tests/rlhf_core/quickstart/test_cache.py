"""The cached world: made once, whole or not at all."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_core.quickstart import cache
from rlhf_core.quickstart.base_model import BaseModelSettings
from rlhf_core.quickstart.cache import QuickstartSettings, content_key, ensure_quickstart_world
from rlhf_core.quickstart.world import WorldSettings

SETTINGS = QuickstartSettings(
    WorldSettings(3, 16, 16, 16, 8, 16, 8),
    BaseModelSettings(hidden_size=16, intermediate_size=32, layers=1, heads=2, steps=2, batch_rows=2, threads=1),
)


def test_a_second_call_finds_the_first_ones_folder_and_does_no_work(tmp_path):
    made = ensure_quickstart_world(tmp_path / "cache", echo=False, settings=SETTINGS)
    assert (made.data / "sft.jsonl").is_file() and (made.model / "config.json").is_file()
    stamps = {path: path.stat().st_mtime_ns for path in made.root.rglob("*")}
    started = time.perf_counter()
    assert ensure_quickstart_world(tmp_path / "cache", echo=False, settings=SETTINGS) == made
    assert time.perf_counter() - started < 0.5
    assert stamps == {path: path.stat().st_mtime_ns for path in made.root.rglob("*")}
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [made.root.name]


def test_seed_settings_and_sources_each_change_the_key(monkeypatch, tmp_path):
    key = content_key(0, SETTINGS)
    assert key == content_key(0, SETTINGS)
    assert key != content_key(1, SETTINGS)
    assert key != content_key(0, replace(SETTINGS, model=replace(SETTINGS.model, steps=3)))
    assert key != content_key(0, replace(SETTINGS, world=replace(SETTINGS.world, sft_rows=17)))
    for module in cache.CONTENT_MODULES:
        (tmp_path / f"{module}.py").write_text("changed")
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "cache.py"))
    assert key != content_key(0, SETTINGS)


def test_a_training_that_breaks_leaves_nothing_behind(monkeypatch, tmp_path):
    def broken(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(cache, "train_base_model", broken)
    with pytest.raises(OSError, match="disk full"):
        ensure_quickstart_world(tmp_path, echo=False, settings=SETTINGS)
    assert list(tmp_path.iterdir()) == []


def test_of_two_makers_at_once_the_first_wins_and_the_second_takes_its_folder(monkeypatch, tmp_path):
    first = ensure_quickstart_world(tmp_path, echo=False, settings=SETTINGS)
    inode = os.stat(first.root).st_ino
    real = Path.is_file
    asked: list[Path] = []

    def missing_once(path: Path) -> bool:
        if path.name == cache.KEY_FILE and not asked:
            asked.append(path)
            return False
        return real(path)

    monkeypatch.setattr(Path, "is_file", missing_once)
    second = ensure_quickstart_world(tmp_path, echo=False, settings=SETTINGS)
    assert asked and second == first
    assert os.stat(second.root).st_ino == inode
    assert [path.name for path in tmp_path.iterdir()] == [first.root.name]
