import json
from dataclasses import replace

import pytest
from transformers import AutoTokenizer

from rlhf_core.config.run import RunConfig
from rlhf_core.data.events import read_events
from rlhf_core.data.reward_model_record import VALIDATION
from rlhf_core.data.store import read_json
from rlhf_core.errors import ConfigError, GateFailed
from rlhf_core.reward_model.stage import run_stage
from tests.rlhf_core.stage_runtime import make_stage_runtime
from tests.tiny_model import make_tiny_world

TRAIN = {
    "learning_rate": 3e-3,
    "epochs": 4,
    "batch_pairs": 8,
    "max_tokens": 96,
    "validation_fraction": 0.2,
    "patience": 50,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory):
    return make_tiny_world(tmp_path_factory.mktemp("world") / "tiny")


@pytest.fixture(scope="module")
def trained(world, tmp_path_factory: pytest.TempPathFactory):
    """A run whose pairs prefer one word to another."""
    tokenizer = AutoTokenizer.from_pretrained(world.model)
    good, bad = (tokenizer.decode([token]).strip() for token in (20, 21))
    root = tmp_path_factory.mktemp("run")
    for name in ("prompts", "prompts_heldout"):
        rows = [json.loads(line)["prompt"] for line in (world.data / f"{name}.jsonl").read_text().splitlines()]
        pairs = [{"prompt": prompt, "chosen": f"{good} {good}", "rejected": f"{bad} {bad}"} for prompt in rows]
        (root / f"{name}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    data = {
        "root": root,
        "prompts": [{"path": "prompts.jsonl", "domain": "words"}],
        "held_out_prompts": [{"path": "prompts_heldout.jsonl"}],
        "preferences": {
            "train": [{"path": "prompts.jsonl"}],
            "held_out": [{"path": "prompts_heldout.jsonl", "domain": "words"}],
        },
    }
    reward_model = {"train": TRAIN, "gate": {"max_length_correlation": 1.0}}
    runtime, _ = make_stage_runtime(root, world, data=data, reward_model=reward_model)
    return runtime, run_stage(runtime)


def test_it_trains_judges_and_keeps_a_model_that_scores(trained):
    runtime, result = trained
    facts = read_json(runtime.folder.reward_model / VALIDATION)
    assert result.path == runtime.folder.reward_model / "model"
    assert result.accuracy == facts["accuracy"]["value"] and 0.5 < facts["accuracy"]["low"] < result.accuracy
    assert facts["word_baseline_accuracy"]["pairs"] == facts["accuracy"]["pairs"]
    assert set(facts["by_domain"]) == {"words"} and facts["failures"] == []
    good, bad = (runtime.tokenizer.decode([token]) for token in (20, 21))
    scores = runtime.scorer().score([{"prompt": "where ?", "response": word} for word in (bad, good)])
    assert scores[0] < scores[1]


def test_a_second_call_reads_what_the_first_wrote(trained, monkeypatch):
    runtime, result = trained
    monkeypatch.setattr("rlhf_core.reward_model.stage.new_reward_model", lambda *a: pytest.fail("trained again"))
    monkeypatch.setattr("rlhf_core.reward_model.stage.load_reward_model", lambda *a: pytest.fail("judged again"))
    assert run_stage(runtime) == result


def test_a_given_model_is_judged_and_refused_with_the_table(trained, world, tmp_path):
    _, result = trained
    gate = {"min_accuracy": 1.0, "max_length_correlation": 0.001}
    settings = {"reward_model": {"path": str(result.path), "train": TRAIN, "gate": gate}}
    runtime, _ = make_stage_runtime(tmp_path, world, **settings)
    for _ in range(2):
        with pytest.raises(GateFailed, match=r"(?s)min_accuracy=1.0.*on held-out pairs .*accuracy .*TF-IDF and length"):
            run_stage(runtime)


def test_a_refused_model_is_judged_by_another_gate_without_training_or_scoring_it_again(trained, monkeypatch):
    runtime, result = trained
    strict = with_gate(runtime.config, max_length_correlation=0.001)
    monkeypatch.setattr("rlhf_core.reward_model.stage.new_reward_model", lambda *a: pytest.fail("trained again"))
    monkeypatch.setattr("rlhf_core.reward_model.stage.load_reward_model", lambda *a: pytest.fail("scored again"))
    with pytest.raises(GateFailed, match=r"rlhf resume \S+/run --set reward_model\.gate\.min_accuracy"):
        run_stage(replace(runtime, config=strict))
    assert len(read_json(runtime.folder.reward_model / VALIDATION)["failures"]) == 1
    assert run_stage(runtime) == result
    assert read_json(runtime.folder.reward_model / VALIDATION)["failures"] == []
    told = [event["message"].split(":")[0] for event in read_events(runtime.folder) if event["kind"] == "reward_model"]
    assert told[:2] == ["reward model accepted", "reward model refused"]


def with_gate(config: RunConfig, **limits: float) -> RunConfig:
    gate = config.reward_model.gate.model_copy(update=limits)
    return config.model_copy(update={"reward_model": config.reward_model.model_copy(update={"gate": gate})})


def test_a_callable_needs_no_reward_model(world, tmp_path):
    reward = {"scorer": "callable", "callable": {"path": "builtins:print"}}
    runtime, _ = make_stage_runtime(tmp_path, world, reward=reward)
    result = run_stage(runtime)
    assert result.path is None and result.is_accepted and "callable" in result.reasons[0]


def test_a_model_that_cannot_be_judged_is_refused(trained, world, tmp_path):
    _, result = trained
    data = {"root": world.data, "prompts": [{"path": "prompts.jsonl"}]}
    runtime, _ = make_stage_runtime(tmp_path, world, reward_model={"path": str(result.path)}, data=data)
    with pytest.raises(ConfigError, match="no held-out preference pairs"):
        run_stage(runtime)


def test_scoring_before_training_is_an_error(world, tmp_path):
    runtime, _ = make_stage_runtime(tmp_path, world)
    with pytest.raises(ConfigError, match="no reward model yet"):
        runtime.scorer()
