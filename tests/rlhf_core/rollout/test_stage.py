import json

import pandas as pd
import pytest

from rlhf_core.config.data import DataConfig
from rlhf_core.config.rejection import RejectionConfig
from rlhf_core.data.events import read_events
from rlhf_core.data.filter_timing import FILTER_TIMING_FILE, filter_costs
from rlhf_core.data.preferences import load_preferences
from rlhf_core.data.replay import REPLACED
from rlhf_core.data.store import read_table
from rlhf_core.errors import CannotLearn, ConfigError
from rlhf_core.rollout.rejecter import require_readable
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


VOWEL = "[a-h][a-z]* .*[aeiou]$"
POLICIES = ("resample", "drop", "penalise", "replace")


def rollouts_of(root, world, rejection, number=1, **settings):
    runtime, policy = make_stage_runtime(root, world, rollout={**ROLLOUT, "rejection": rejection}, **settings)
    return runtime, policy, run_stage(runtime, policy, number)


def test_replaced_responses_are_pairs_that_the_reward_models_training_reads(world, tmp_path):
    runtime, _, stored = rollouts_of(tmp_path, world, {"policy": "replace", "banned_patterns": [VOWEL]})
    replaced = read_table(stored.path / REPLACED)
    assert 0 < len(replaced) == 12 - stored.rows == stored.metrics["rollout/replaced"]
    source = {"path": str(runtime.folder.preferences)}
    config = DataConfig.model_validate(
        {"prompts": [{"path": "p"}], "preferences": {"train": [source], "held_out_fraction": 0.3}}
    )
    pairs = load_preferences(config)
    found = pd.concat([pairs.train, pairs.held_out])
    want = replaced[["domain", "prompt", "chosen", "rejected"]].drop_duplicates()
    assert set(found[want.columns].itertuples(index=False)) == set(want.itertuples(index=False))
    kept = set(read_table(stored.path / ROLLOUTS)["response"])
    assert not kept & (set(replaced["chosen"]) | set(replaced["rejected"]))


def test_a_second_try_with_fewer_replacements_leaves_no_pair_of_the_first(world, tmp_path):
    runtime, policy, _ = rollouts_of(tmp_path, world, {"policy": "replace", "banned_patterns": [VOWEL]})
    assert len(list(runtime.folder.preferences.iterdir())) == 1
    runtime.config = runtime.config.model_copy(
        update={"rollout": runtime.config.rollout.model_copy(update={"rejection": RejectionConfig()})}
    )
    run_stage(runtime, policy, 1)
    assert list(runtime.folder.preferences.iterdir()) == []


def test_acceptance_is_told_by_filter_and_by_domain_and_seconds_stand_apart(world, tmp_path):
    rejection = {"policy": "penalise", "banned_patterns": [VOWEL], "banned_words": ["zzzz"]}
    runtime, _, stored = rollouts_of(tmp_path, world, rejection)
    frame, metrics = read_table(stored.path / ROLLOUTS), stored.metrics
    bad = frame["rejected_by"].notna()
    assert 0 < bad.sum() < 12 and len(frame) == 12
    assert metrics["rollout/acceptance_rate"] == pytest.approx(1 - bad.mean())
    assert metrics["rollout/penalised_fraction"] == pytest.approx(bad.mean())
    assert metrics["rollout/acceptance_of_banned"] == pytest.approx(1 - bad.mean())
    assert metrics["rollout/acceptance_of_banned_word"] == 1.0
    for domain, rows in frame.groupby("domain"):
        assert metrics[f"rollout/acceptance_in_{domain}"] == pytest.approx(rows["rejected_by"].isna().mean())
    assert not [name for name in metrics if "second" in name]
    costs = filter_costs(runtime.folder)
    assert costs.index.tolist() == ["banned", "banned_word", "too_short", "invalid", "repetitive"]
    assert costs["texts"].tolist() == [12, *[12 - bad.sum()] * 4]
    assert (costs["milliseconds_per_text"] >= 0).all()
    assert filter_costs(make_stage_runtime(tmp_path / "b", world)[0].folder).empty
    assert (runtime.folder.metrics / FILTER_TIMING_FILE).exists()


@pytest.mark.parametrize("policy", POLICIES)
def test_each_policy_gives_the_same_files_in_a_second_folder_and_is_not_done_twice(world, tmp_path, policy):
    rejection = {"policy": policy, "banned_patterns": [VOWEL], "max_attempts": 2, "safety": {"threshold": 0.3}}
    runtime, start, first = rollouts_of(tmp_path / "a", world, rejection)
    _, _, second = rollouts_of(tmp_path / "b", world, rejection)
    manifests = [json.loads((found.path / "MANIFEST.json").read_text())["files"] for found in (first, second)]
    assert manifests[0] == manifests[1]
    before = (runtime.folder.metrics / FILTER_TIMING_FILE).read_text()
    assert run_stage(runtime, start, 1) == first
    assert (runtime.folder.metrics / FILTER_TIMING_FILE).read_text() == before


def test_the_contents_of_word_lists_and_replies_decide_whether_a_stored_result_serves(world, tmp_path):
    words, cache = tmp_path / "words.txt", tmp_path / "replies.jsonl"
    words.write_text("zzzz\n")
    cache.write_text('{"prompt": "no such", "response": "x"}\n')
    rejection = {
        "policy": "replace",
        "banned_words_files": [str(words)],
        "banned_patterns": [VOWEL],
        "replacement": {"cache_file": str(cache)},
    }
    runtime, policy, first = rollouts_of(tmp_path, world, rejection)
    assert run_stage(runtime, policy, 1) == first
    prompts = read_table(first.path / REPLACED)["prompt"].unique()
    cache.write_text("".join(json.dumps({"prompt": text, "response": "From the cache."}) + "\n" for text in prompts))
    second = run_stage(runtime, policy, 1)
    assert set(read_table(second.path / REPLACED)["chosen"]) == {"From the cache."}
    frame = read_table(second.path / ROLLOUTS)
    words.write_text(frame["response"].iloc[0] + "\n")
    third = run_stage(runtime, policy, 1)
    assert third.metrics["rollout/rejected_banned_word"] > 0
    words.unlink()
    with pytest.raises(ConfigError, match=r"banned_words_files: .*words.txt cannot be read"):
        run_stage(runtime, policy, 1)
    with pytest.raises(ConfigError, match=r"banned_words_files: .*words.txt cannot be read"):
        require_readable(runtime.config)


def test_a_response_below_the_least_reward_is_rejected_by_the_runs_own_scorer(world, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "least_reward_scorer.py").write_text("def score(p, r):\n    return [len(x) for x in r]\n")
    reward = {"scorer": "callable", "callable": {"path": "least_reward_scorer:score"}}
    _, _, free = rollouts_of(tmp_path / "a", world, {"policy": "drop"}, reward=reward)
    lengths = read_table(free.path / ROLLOUTS)["response"].map(len)
    least = float(lengths.median())
    _, _, stored = rollouts_of(tmp_path / "b", world, {"policy": "drop", "min_reward": least}, reward=reward)
    assert read_table(stored.path / ROLLOUTS)["response"].map(len).tolist() == lengths[lengths >= least].tolist()
    assert stored.metrics["rollout/rejected_low_reward"] == (lengths < least).sum() > 0


@pytest.mark.parametrize("policy", ["resample", "drop", "replace"])
def test_case_E08_responses_that_are_all_cut_and_rejected_stop_the_run_with_the_length_limit(world, tmp_path, policy):
    rejection = {"policy": policy, "banned_patterns": ["^"]}
    rollout = {**ROLLOUT, "max_new_tokens": 1, "min_response_tokens": 0, "rejection": rejection}
    runtime, start = make_stage_runtime(tmp_path, world, rollout=rollout)
    with pytest.raises(CannotLearn, match=r"All of them hit the length limit: raise rollout.max_new_tokens"):
        run_stage(runtime, start, 1)


def test_the_length_limit_follows_its_schedule(world, tmp_path):
    rollout = {**ROLLOUT, "min_response_tokens": 1, "max_new_tokens_schedule": [[1, 2], [2, 5]]}
    runtime, policy = make_stage_runtime(tmp_path, world, rollout=rollout)
    for number, limit in ((1, 2), (2, 5), (3, 5)):
        frame = read_table(run_stage(runtime, policy, number).path / ROLLOUTS)
        lengths = frame["response_ids"].map(len)
        assert lengths.max() == limit
        assert (lengths[frame["finish_reason"] == "length"] == limit).all()
