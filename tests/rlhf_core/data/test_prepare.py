from __future__ import annotations

from collections import Counter

import pytest

from rlhf_core.data import prepared
from rlhf_core.data.events import read_events
from rlhf_core.data.json_lines import read_json_lines
from rlhf_core.data.prepare import run_stage
from rlhf_core.errors import DataError, ValidationFailed

PAIR = {"chosen": "w1 w2", "rejected": "w3"}
RUN = {
    "rollout": {"max_prompt_tokens": 6, "prompts_per_iteration": 4},
    "ppo": {"ptx": {"enabled": True, "max_tokens": 8}},
}


@pytest.fixture
def config(make_config, write_lines, tmp_path):
    write_lines("prompts.jsonl", [{"prompt": f"w{n}", "domain": "ab"[n % 2]} for n in range(1, 20)])
    write_lines("held.jsonl", [{"prompt": "w1"}, {"prompt": "w50"}])
    write_lines("pairs.jsonl", [{"prompt": f"w{n}", **PAIR} for n in range(60)])
    write_lines("sft.jsonl", [{"prompt": "w2"}, {"prompt": "w70"}, {"prompt": "w1 w2 w3 w4 w5 w6 w7"}])
    (tmp_path / "ptx.txt").write_text("\n\n".join(f"w{n} w{n + 1}" for n in range(9)))
    sources = {
        "held_out_prompts": [{"path": "held.jsonl"}],
        "preferences": {"train": [{"path": "pairs.jsonl"}]},
        "sft": [{"path": "sft.jsonl"}],
        "ptx": [{"path": "ptx.txt"}],
    }
    return make_config({**sources, "general_fraction": 0.25, "ptx_held_out_documents": 2}, **RUN)


def test_everything_later_stages_need_stands_in_the_run_folder(config, make_runtime):
    runtime = make_runtime(config)
    ref = run_stage(runtime)
    pool, held_out = prepared.prompt_pool(runtime.folder), prepared.held_out_prompts(runtime.folder)
    assert set(pool["prompt"]) == {f"w{n}" for n in range(2, 20)} | {"w70"}
    assert pool.loc[pool["is_general"], "prompt"].tolist() == ["w70"]
    assert held_out["prompt"].tolist() == ["w1", "w50"]
    train, judged = prepared.preference_pairs(runtime.folder)
    assert len(train) + len(judged) == 60 and len(judged)
    assert len(prepared.ptx_documents(runtime.folder)) == 7
    assert len(prepared.ptx_documents(runtime.folder, held_out=True)) == 2
    reasons = Counter(row["reason"] for row in read_json_lines(ref.path / prepared.LEFT_OUT))
    assert reasons == {"held_out": 1, "duplicate": 1, "too_long": 1}
    assert ref.metrics["data/prompts"] == ref.rows == 19
    assert ref.metrics["data/left_out_too_long"] == 1
    assert [row["facts"] for row in read_events(runtime.folder) if row["kind"] == "left_out"] == [dict(reasons)]
    assert "sources.html" in (runtime.folder.validation / "index.html").read_text()


def test_a_second_call_reads_nothing_anew_and_a_changed_source_does(config, make_runtime, write_lines):
    runtime = make_runtime(config)
    first = run_stage(runtime)
    assert run_stage(runtime) == first
    write_lines("held.jsonl", [{"prompt": "w51"}])
    assert run_stage(runtime).sha256 != first.sha256
    assert prepared.held_out_prompts(runtime.folder)["prompt"].tolist() == ["w51"]


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"rollout": {"max_prompt_tokens": 7}},
        {"evaluation": {"held_out_rollouts": 2}},
        {"validation": {"on_failure": "stop"}},
    ],
)
def test_a_setting_on_which_the_data_depend_has_them_prepared_anew(change, make_config, make_runtime, write_lines):
    write_lines("prompts.jsonl", [{"prompt": f"w{n}"} for n in range(20)])
    first = run_stage(make_runtime(make_config({})))
    assert run_stage(make_runtime(make_config({}, rounds=3))) == first
    assert run_stage(make_runtime(make_config({}, **change))).sha256 != first.sha256


def test_a_pair_that_fails_an_expectation_is_kept_apart_with_its_reason_or_stops_the_run(
    make_config, make_runtime, write_lines
):
    write_lines("prompts.jsonl", [{"prompt": f"w{n}"} for n in range(20)])
    write_lines("pairs.jsonl", [{"prompt": "w1", **PAIR}, {"prompt": "w2", "chosen": "w3", "rejected": "W3"}])
    write_lines("judged.jsonl", [{"prompt": "w9", **PAIR}])
    sides = {"train": [{"path": "pairs.jsonl"}], "held_out": [{"path": "judged.jsonl"}]}
    runtime = make_runtime(make_config({"preferences": sides}))
    ref = run_stage(runtime)
    train, judged = prepared.preference_pairs(runtime.folder)
    assert (train["prompt"].tolist(), judged["prompt"].tolist()) == (["w1"], ["w9"])
    (row,) = read_json_lines(ref.path / prepared.LEFT_OUT)
    assert (row["reason"], row["text"]) == ("quarantined", "w2")
    assert "differ in more than white space and case" in row["detail"]
    with pytest.raises(ValidationFailed, match=r"preferences_train.parquet: 1 of 2 rows fail.*quarantine"):
        run_stage(make_runtime(make_config({"preferences": sides}, validation={"on_failure": "stop"})))


def test_without_a_held_out_source_some_prompts_are_taken_out_of_the_pool(make_config, make_runtime, write_lines):
    write_lines("prompts.jsonl", [{"prompt": f"w{n}"} for n in range(20)])
    runtime = make_runtime(make_config({}))
    run_stage(runtime)
    pool, held_out = prepared.prompt_pool(runtime.folder), prepared.held_out_prompts(runtime.folder)
    assert (len(pool), len(held_out)) == (16, 4)
    assert not set(pool["prompt"]) & set(held_out["prompt"])
    kinds = [row["kind"] for row in read_events(runtime.folder)]
    assert kinds == ["held_out_prompts", "small_prompt_pool"]


def test_prompts_that_are_all_too_long_are_refused_with_the_counts(make_config, make_runtime, write_lines):
    write_lines("prompts.jsonl", [{"prompt": "w1 w2 w3 w4 w5 w6"}] * 2)
    with pytest.raises(DataError, match=r"data.prompts: no usable prompt.*'too_long': 1.*max_prompt_tokens \(now 6\)"):
        run_stage(make_runtime(make_config({}, **RUN | {"ppo": {"ptx": {"enabled": False}}})))
