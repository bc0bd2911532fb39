import pytest

from rlhf_core.data.events import read_events
from rlhf_core.data.store import read_table
from rlhf_core.errors import CannotLearn
from rlhf_core.rollout.stage import REJECTED, ROLLOUTS, run_stage
from tests.rlhf_core.stage_runtime import make_stage_runtime
from tests.tiny_model import make_tiny_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory):
    return make_tiny_world(tmp_path_factory.mktemp("world") / "tiny")


ROLLOUT = {"prompts_per_iteration": 6, "samples_per_prompt": 2, "max_new_tokens": 8, "batch_size": 5}


def test_an_iterations_rollouts_are_stored_once_and_are_the_same_in_any_batch_size(world, tmp_path):
    runtime, policy = make_stage_runtime(tmp_path / "a", world, rollout=ROLLOUT)
    stored = run_stage(runtime, policy, 1)
    frame = read_table(stored.path / ROLLOUTS)
    assert stored.rows == len(frame) == 12
    assert all(sorted(samples) == [0, 1] for _, samples in frame.groupby("prompt_id")["sample_index"])
    metrics = stored.metrics
    assert metrics["rollout/natural_fraction"] + metrics["rollout/early_fraction"] + metrics[
        "rollout/truncated_fraction"
    ] == pytest.approx(1.0)
    assert metrics["rollout/response_tokens_mean"] == frame["response_ids"].map(len).mean()
    assert metrics["rollout/acceptance_rate"] == 12 / (12 + len(read_table(stored.path / REJECTED)))

    runtime.rollout_engine = lambda policy: pytest.fail("sampled again")
    assert run_stage(runtime, policy, 1) == stored

    other, policy = make_stage_runtime(tmp_path / "b", world, rollout={**ROLLOUT, "batch_size": 12})
    again = read_table(run_stage(other, policy, 1).path / ROLLOUTS)
    assert again["response_ids"].tolist() == frame["response_ids"].tolist()


def test_another_iteration_draws_other_responses(world, tmp_path):
    runtime, policy = make_stage_runtime(tmp_path, world, rollout=ROLLOUT)
    first, second = (read_table(run_stage(runtime, policy, number).path / ROLLOUTS) for number in (1, 2))
    assert not set(first["seed"]) & set(second["seed"])


def test_rejected_samples_are_kept_apart_and_given_up_places_are_an_event(world, tmp_path):
    rejection = {"max_attempts": 2, "banned_patterns": ["[a-h][a-z]* .*[aeiou]$"], "max_repeated_ngram_fraction": 1.0}
    runtime, policy = make_stage_runtime(tmp_path, world, rollout={**ROLLOUT, "rejection": rejection})
    stored = run_stage(runtime, policy, 1)
    rejected = read_table(stored.path / REJECTED)
    assert len(rejected) > 0 and set(rejected["rejected_by"]) == {"banned"}
    assert stored.metrics["rollout/rejected_banned"] == len(rejected)
    given_up = int((rejected["attempts"] == 2).sum())
    events = [
        event["facts"]["given_up"] for event in read_events(runtime.folder) if event["kind"] == "rejected_responses"
    ]
    assert events == ([given_up] if given_up else [])
    assert stored.rows == 12 - given_up


def test_a_run_whose_responses_are_all_rejected_stops_with_the_reasons(world, tmp_path):
    rejection = {"policy": "drop", "min_response_tokens": 9}
    runtime, policy = make_stage_runtime(tmp_path, world, rollout={**ROLLOUT, "rejection": rejection})
    with pytest.raises(CannotLearn, match=r"all 12 responses were rejected \(\{'too_short': 12\}\)"):
        run_stage(runtime, policy, 1)
    assert not (runtime.folder.iteration(1) / "rollouts").exists()
