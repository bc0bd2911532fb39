"""Whatever happens to a run's checkpoints, what it needs stays on disk (F2)."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.checkpoints.manifest import require_whole
from rlhf_core.checkpoints.records import VALID
from rlhf_core.checkpoints.registry import Registry
from rlhf_core.data.refs import ControlState
from rlhf_core.data.store import RunFolder
from rlhf_core.errors import CheckpointError
from tests.rlhf_core.checkpoints.test_registry import save

actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(["verified", "saved"])),
        st.tuples(st.just("settle"), st.just(0)),
        st.tuples(st.just("promote"), st.floats(-1, 1)),
        st.tuples(st.just("damage"), st.integers(0, 8)),
        st.tuples(st.just("roll_back"), st.just(0)),
        st.tuples(st.just("go_back"), st.integers(0, 8)),
    ),
    max_size=14,
)


def act(folder: RunFolder, action: str, value: object, keep_last: int) -> None:
    registry = Registry(folder)
    state = registry.state
    current = registry.current()
    valid = [step for step, entry in state.checkpoints.items() if entry.status in VALID]
    if action == "add":
        step = registry.state.last_step() + 1
        shutil.rmtree(folder.checkpoints / f"step-{step:06d}", ignore_errors=True)
        entry = save(folder, step, current.step).model_copy(update={"status": value})
        registry.add(entry, keep_last=keep_last)
    elif action == "settle":
        for step, entry in state.checkpoints.items():
            if entry.status == "saved":
                registry.mark_verified(step)
    elif action == "promote" and current.step in valid:
        registry.promote(current.step, value)
    elif action == "damage" and len(valid) > 1 and state.checkpoints[value_of(valid, value)].status in VALID:
        step = value_of(valid, value)
        (state.checkpoints[step].ref.path / "policy" / "weights").write_bytes(b"x")
        registry.mark_damaged(step, "broken")
        registry.usable_current()
    elif action == "roll_back" and state.promoted is not None:
        line = state.line_of(current.step)
        abandoned = [n for n in line if n > state.promoted and state.checkpoints[n].status != "pruned"]
        if state.promoted in line:
            registry.close_round(1, ControlState(kl_coef=0.2, ptx_coef=0.0), abandoned=abandoned)
    elif action == "go_back":
        registry.go_back(value_of(valid, value))


def value_of(steps: list[int], value: object) -> int:
    return steps[int(value) % len(steps)]  # type: ignore[call-overload]


@given(actions, st.integers(1, 3))
def test_the_last_valid_the_promoted_and_the_best_stay_and_the_current_one_is_usable(sequence, keep_last):
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place))
        registry = Registry(folder)
        registry.add(save(folder, 0, None), keep_last=keep_last)
        registry.promote(0, None)
        for action, value in sequence:
            before = Registry(folder).state
            try:
                act(folder, action, value, keep_last)
            except CheckpointError as error:
                assert "is whole" in str(error)  # the last one below the current was damaged
                return
            after = Registry(folder).state
            valid = [step for step, entry in after.checkpoints.items() if entry.status in VALID]
            newest = [max(valid)] if valid else []
            for step in {*newest, after.promoted, after.best} - {None}:
                require_whole(after.checkpoints[step].ref.path)
            assert after.current is not None
            require_whole(after.current.path)
            assert after.checkpoints[after.current.step].status in (*VALID, "saved")
            assert set(before.checkpoints) <= set(after.checkpoints)
            for step in valid:
                assert after.checkpoints[step].ref.path.exists()
            for step, entry in after.checkpoints.items():
                assert entry.ref.path.exists() == (entry.status != "pruned"), step


def test_case_C02_best_stays_on_disk_and_best_over_a_resume_with_a_lower_score_and_many_more_checkpoints(tmp_path):
    folder = RunFolder(tmp_path)
    registry = Registry(folder)
    for step in range(2):
        registry.add(save(folder, step, step - 1 if step else None), keep_last=1)
    registry.promote(1, score=0.8)
    for step in range(2, 6):
        resumed = Registry(folder)
        resumed.add(save(folder, step, step - 1), keep_last=1)
        resumed.promote(step, score=0.5)
    best = Registry(folder).best()
    assert best is not None and best.step == 1
    require_whole(best.path)
    assert folder.best.resolve() == (best.path / "policy").resolve()
    assert {path.name for path in folder.checkpoints.glob("step-*")} == {"step-000001", "step-000004", "step-000005"}


def test_what_is_not_verified_neither_counts_as_the_last_valid_one_nor_is_deleted(tmp_path):
    folder = RunFolder(tmp_path)
    registry = Registry(folder)
    registry.add(save(folder, 0, None), keep_last=1)
    for step in range(1, 4):
        registry.add(save(folder, step, step - 1).model_copy(update={"status": "saved"}), keep_last=1)
    assert len(list(folder.checkpoints.glob("step-*"))) == 4
    with pytest.raises(CheckpointError, match="is saved, not verified"):
        registry.promote(3, 0.9)
