"""A person verifies checkpoints and goes back to one; the run goes on from there with numbers never used before."""

from __future__ import annotations

import os

import pytest

from rlhf_core.checkpoints.by_hand import examine, go_back
from rlhf_core.checkpoints.registry import Registry
from rlhf_core.checkpoints.stage import remaining_iterations, remaining_rounds, start_policy
from rlhf_core.data.events import read_events
from rlhf_core.data.refs import ControlState
from rlhf_core.errors import CheckpointError, RunLocked
from rlhf_core.recovery.lock import acquire_lock
from rlhf_core.runtime import close_runtime, open_runtime, stored_config
from tests.rlhf_core.checkpoints.saving import save_next

CAREFUL = ControlState(kl_coef=0.4, ptx_coef=0.05, learning_rate_factor=0.5)


def break_weights(folder, step: int) -> None:
    weights = folder.checkpoints / f"step-{step:06d}" / "policy" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def test_going_back_within_a_round_leaves_the_spent_iterations_spent(run_folder):
    """Two rounds of two iterations; both of round 1 are done, its gate is not decided."""
    config = stored_config(run_folder.path)
    done = go_back(run_folder, config, 1)
    assert (done.step, done.abandoned, done.round_number, done.iterations) == (1, (2,), 1, ())
    assert "the gate of round 1 judges it" in done.in_words(run_folder.path)
    registry = Registry(run_folder)
    assert registry.current().step == 1 and registry.entry(2).status == "abandoned"
    assert (run_folder.checkpoints / "step-000002").exists()
    assert list(remaining_rounds(run_folder, config)) == [1, 2]
    event = read_events(run_folder)[-1]
    assert event["kind"] == "rollback_by_hand" and event["facts"]["abandoned"] == [2]


def test_decided_rounds_stay_decided_and_training_goes_on_from_there_under_a_new_number(run_folder):
    config = stored_config(run_folder.path)
    registry = Registry(run_folder)
    registry.promote(2, 0.9)
    registry.close_round(1, CAREFUL, stop=True)
    done = go_back(run_folder, config, 1)
    assert (done.round_number, done.iterations) == (2, (3, 4))
    assert "iteration 3, round 2" in done.in_words(run_folder.path)
    registry = Registry(run_folder)
    assert (registry.promoted().step, registry.best().step) == (0, 0)
    assert not registry.state.is_stopped and registry.state.decided_rounds == 1
    assert run_folder.best.resolve().parent.name == "step-000000"

    runtime = open_runtime(run_folder.path)
    try:
        policy = start_policy(runtime)
        assert policy.step == 1
        saved = save_next(runtime, policy)
        assert saved.step == 3 and Registry(run_folder).entry(3).parent == 1
        assert runtime.at(saved).trainer.actor_optimizer.steps == 2  # one of step 1, one of step 3
        assert list(remaining_iterations(run_folder, config, 2)) == [4]
    finally:
        close_runtime(run_folder.path)


def test_what_was_decided_when_the_run_last_went_on_from_a_checkpoint_holds_again(run_folder):
    Registry(run_folder).close_round(1, CAREFUL, abandoned=[1, 2])
    config = stored_config(run_folder.path)
    go_back(run_folder, config, 2)
    assert Registry(run_folder).entry(2).status == "verified"
    go_back(run_folder, config, 0)
    assert Registry(run_folder).current().control == CAREFUL


def test_when_every_round_is_decided_there_is_only_the_report_left(run_folder):
    Registry(run_folder).close_round(2, CAREFUL)
    done = go_back(run_folder, stored_config(run_folder.path), 1)
    assert done.round_number is None and "trains no more" in done.in_words(run_folder.path)


@pytest.mark.parametrize(("step", "words"), [(7, "does not exist.*0, 1, 2"), (2, "nothing to do"), (1, "cannot be")])
def test_a_checkpoint_that_is_not_there_current_or_damaged_is_refused(run_folder, step, words):
    break_weights(run_folder, 1)
    with pytest.raises(CheckpointError, match=rf"(?s){words}"):
        go_back(run_folder, stored_config(run_folder.path), step)
    assert Registry(run_folder).current().step == 2


def test_a_run_at_work_is_not_turned_back_and_only_looked_at(run_folder):
    config = stored_config(run_folder.path)
    break_weights(run_folder, 1)
    lock = acquire_lock(run_folder)
    with pytest.raises(RunLocked, match=rf"process {os.getpid()} on .* since"):
        go_back(run_folder, config, 1)
    (found,) = examine(run_folder, config, [1])
    assert "bytes" in found.reason and not found.is_marked
    assert Registry(run_folder).entry(1).status == "verified"
    lock.release()
    (found,) = examine(run_folder, config, [1])
    assert found.is_marked and Registry(run_folder).entry(1).status == "damaged"
    assert read_events(run_folder)[-1]["kind"] == "checkpoint_damaged"


def test_all_are_examined_and_a_pruned_one_is_said_to_be_gone(run_folder):
    config = stored_config(run_folder.path)
    assert [(one.step, one.reason) for one in examine(run_folder, config, None)] == [(0, None), (1, None), (2, None)]
    runtime = open_runtime(run_folder.path)
    save_next(runtime, start_policy(runtime))
    close_runtime(run_folder.path)
    with pytest.raises(CheckpointError, match=r"checkpoint 1 was deleted by retention .*\[0, 2, 3\]"):
        examine(run_folder, config, [1])


def test_a_fallback_goes_on_with_what_the_gate_had_decided(run_folder):
    Registry(run_folder).close_round(1, CAREFUL, abandoned=[1, 2])
    runtime = open_runtime(run_folder.path)
    try:
        save_next(runtime, start_policy(runtime))
        break_weights(run_folder, 3)
        assert start_policy(runtime).step == 0 and start_policy(runtime).control == CAREFUL
    finally:
        close_runtime(run_folder.path)
