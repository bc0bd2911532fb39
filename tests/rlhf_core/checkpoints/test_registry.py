"""Pointers to checkpoints move as decided, survive kills, and never lead to a damaged one."""

from __future__ import annotations

import pytest

from rlhf_core.checkpoints.manifest import require_whole
from rlhf_core.checkpoints.registry import Entry, Registry
from rlhf_core.checkpoints.stage import remaining_iterations, remaining_rounds
from rlhf_core.config.run import RunConfig
from rlhf_core.data.events import read_events
from rlhf_core.data.refs import CheckpointRef, ControlState
from rlhf_core.data.store import RunFolder, write_json
from rlhf_core.errors import CheckpointError
from tests.rlhf_core.checkpoints.manifests import write_manifest

CONFIG = RunConfig.model_validate(
    {
        "name": "x",
        "rounds": 2,
        "iterations_per_round": 3,
        "data": {"prompts": [{"path": "p"}], "preferences": {"train": [{"path": "q"}]}, "ptx": [{"path": "t"}]},
        "model": {"policy": "m"},
    }
)


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def save(folder: RunFolder, step: int, parent: int | None) -> Entry:
    path = folder.checkpoints / f"step-{step:06d}"
    (path / "policy").mkdir(parents=True)
    (path / "policy" / "weights").write_bytes(bytes(range(200)) * 2)
    ref = CheckpointRef(step=step, path=path, control=ControlState(kl_coef=0.1, ptx_coef=0.05))
    entry = Entry(ref=ref, parent=parent, status="verified")
    write_json(path / "state.json", {"entry": entry.model_dump(mode="json")})
    write_manifest(path)
    return entry


def saved_run(folder: RunFolder, last: int, keep_last: int = 9) -> Registry:
    registry = Registry(folder)
    for step in range(last + 1):
        registry.add(save(folder, step, step - 1 if step else None), keep_last=keep_last)
        if step == 0:
            registry.promote(0, None)
    return registry


def test_case_C04_a_truncated_newest_checkpoint_gives_way_to_the_one_before_and_the_log_says_so(folder):
    saved_run(folder, 3)
    weights = folder.checkpoints / "step-000003" / "policy" / "weights"
    weights.write_bytes(weights.read_bytes()[:-100])
    current = Registry(folder).usable_current()
    assert current is not None and current.step == 2
    (event,) = read_events(folder)
    assert event["kind"] == "checkpoint_fallback" and "300 bytes, the manifest says 400" in event["message"]
    entry = Registry(folder).entry(3)
    assert entry is not None and entry.status == "damaged"
    assert list(remaining_iterations(folder, CONFIG, 1)) == [3]


def test_a_flipped_bit_is_found(folder):
    saved_run(folder, 1)
    weights = folder.checkpoints / "step-000001" / "policy" / "weights"
    content = bytearray(weights.read_bytes())
    content[17] ^= 1
    weights.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match="sha256"):
        require_whole(folder.checkpoints / "step-000001")
    current = Registry(folder).usable_current()
    assert current is not None and current.step == 0


def test_a_missing_file_is_named_and_no_whole_checkpoint_at_all_is_an_error(folder):
    saved_run(folder, 1)
    for step in (0, 1):
        (folder.checkpoints / f"step-00000{step}" / "policy" / "weights").unlink()
    with pytest.raises(CheckpointError, match=r"(?s)weights is missing.*another name"):
        Registry(folder).usable_current()


def test_a_checkpoint_that_a_kill_left_unregistered_is_taken_in(folder):
    saved_run(folder, 1)
    save(folder, 2, parent=1)
    assert Registry(folder).state.current.step == 2
    save(folder, 7, parent=5)
    assert Registry(folder).state.current.step == 2


def test_retention_keeps_the_newest_the_promoted_and_the_best(folder):
    registry = saved_run(folder, 2)
    registry.promote(1, score=0.8)
    registry.promote(2, score=0.5)
    for step in (3, 4, 5):
        registry.add(save(folder, step, step - 1), keep_last=2)
    kept = {int(path.name[5:]) for path in folder.checkpoints.glob("step-*")}
    assert kept == {1, 2, 4, 5}
    assert registry.entry(3).status == registry.entry(0).status == "pruned"


def test_case_C02_best_stays_best_when_a_later_promoted_one_scores_less(folder):
    registry = saved_run(folder, 2)
    registry.promote(1, score=0.8)
    registry = Registry(folder)
    registry.promote(2, score=0.5)
    assert (registry.promoted().step, registry.best().step) == (2, 1)
    assert (folder.best / "weights").exists() and folder.best.resolve().parent.name == "step-000001"


def test_a_rollback_returns_to_the_promoted_one_and_never_reuses_a_number(folder):
    registry = saved_run(folder, 3)
    control = ControlState(kl_coef=0.2, ptx_coef=0.05, learning_rate_factor=0.5)
    target = registry.close_round(1, control, abandoned=[1, 2, 3])
    assert target.step == 0 and registry.entry(3).status == "abandoned"
    again = Registry(folder)
    assert again.current().step == 0 and again.current().control.learning_rate_factor == 0.5
    assert list(remaining_rounds(folder, CONFIG)) == [2] and list(remaining_iterations(folder, CONFIG, 2)) == [4, 5, 6]
    assert (folder.checkpoints / "step-000003").exists()


def test_without_a_promoted_checkpoint_a_rollback_is_refused(folder):
    registry = Registry(folder)
    registry.add(save(folder, 0, None), keep_last=2)
    with pytest.raises(CheckpointError, match="no checkpoint has been promoted"):
        registry.close_round(1, ControlState(kl_coef=0.1, ptx_coef=0.05), abandoned=[0])


def test_case_C03_a_run_resumed_at_the_end_of_a_round_goes_on_with_its_gate(folder):
    registry = saved_run(folder, 3)
    assert list(remaining_rounds(folder, CONFIG)) == [1, 2]
    assert list(remaining_iterations(folder, CONFIG, 1)) == []
    registry.close_round(1, ControlState(kl_coef=0.1, ptx_coef=0.05))
    assert list(remaining_rounds(folder, CONFIG)) == [2] and list(remaining_iterations(folder, CONFIG, 2)) == [4, 5, 6]


def test_a_decision_to_stop_outlives_the_process(folder):
    saved_run(folder, 3).close_round(1, ControlState(kl_coef=0.1, ptx_coef=0.05), stop=True)
    assert list(remaining_rounds(folder, CONFIG)) == []
