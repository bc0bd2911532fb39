"""Whose a run's folder is: a new run's, the same run's, or nobody's yet."""

from __future__ import annotations

import pytest

from rlhf_core.checkpoints.stage import start_policy
from rlhf_core.data.events import read_events
from rlhf_core.data.store import MANIFEST, write_json
from rlhf_core.errors import RunFolderError, RunLocked
from rlhf_core.recovery.lock import acquire_lock
from rlhf_core.runtime import close_runtime, open_runtime, prepare_run, stored_config
from tests.tiny_model import TinyWorld, make_tiny_model, make_tiny_world
from tests.tiny_run import tiny_config


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    return make_tiny_world(tmp_path_factory.mktemp("world"))


def test_a_run_without_results_gives_its_name_and_nothing_of_its_model_to_the_next_try(world, tmp_path):
    folder = prepare_run(tiny_config(world, tmp_path), resume=False)
    runtime = open_runtime(folder.path)
    first = start_policy(runtime)
    close_runtime(folder.path)
    other = make_tiny_model(tmp_path / "other", seed=3)
    corrected = tiny_config(world, tmp_path, model={"policy": str(other)})
    prepare_run(corrected, resume=False)
    assert stored_config(folder.path) == corrected
    runtime = open_runtime(folder.path)
    assert not first.path.exists()
    start = start_policy(runtime)
    close_runtime(folder.path)
    weights = "model.safetensors"
    assert (start.path / "policy" / weights).read_bytes() == (other / weights).read_bytes()


@pytest.mark.parametrize("result", ["baseline/ability", "reward_model/model", "checkpoints/step-000001"])
def test_a_run_with_a_result_keeps_its_name(result, world, tmp_path):
    folder = prepare_run(tiny_config(world, tmp_path), resume=False)
    write_json(folder.path / result / MANIFEST, {})
    for changes in ({}, {"seed": 5}):
        with pytest.raises(RunFolderError, match=r"holds a run.*rlhf resume.*--name"):
            prepare_run(tiny_config(world, tmp_path, **changes), resume=False)
    assert stored_config(folder.path).seed == 0


def test_a_run_that_another_process_has_just_begun_keeps_its_name(world, tmp_path):
    folder = prepare_run(tiny_config(world, tmp_path), resume=False)
    lock = acquire_lock(folder)
    with pytest.raises(RunLocked, match="is in use by process"):
        prepare_run(tiny_config(world, tmp_path, seed=5), resume=False)
    lock.release()
    assert stored_config(folder.path).seed == 0


def test_what_a_start_left_that_a_kill_cut_short_is_in_nobodys_way(world, tmp_path):
    config = tiny_config(world, tmp_path)
    folder = prepare_run(config, resume=False)
    folder.config.rename(folder.path / ".config.yaml.17.partial")
    assert stored_config(prepare_run(config, resume=False).path) == config


def test_a_run_goes_on_with_another_gate_and_says_so(world, tmp_path):
    gates = [{"reward_model": {"gate": {"min_accuracy": limit}}} for limit in (0.9, 0.6)]
    strict, mild = (tiny_config(world, tmp_path, **changes) for changes in gates)
    folder = prepare_run(strict, resume=False)
    write_json(folder.path / "reward_model" / "model" / MANIFEST, {})
    with pytest.raises(RunFolderError, match=r"rlhf resume \S+/tiny --set reward_model\.gate\.min_accuracy=0\.6`"):
        prepare_run(mild, resume=False)
    assert stored_config(folder.path) == strict
    for limits in (mild, strict, mild):
        prepare_run(limits, resume=True)
        assert stored_config(folder.path) == limits
    told = [event["message"] for event in read_events(folder) if event["kind"] == "settings_changed"]
    assert len(told) == 3
    assert "reward_model.gate.min_accuracy: 0.9 → 0.6" in told[0] and told[0] == told[2]
