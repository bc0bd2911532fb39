import pytest

from rlhf_core.data.store import read_json
from rlhf_core.errors import ConfigError, GateFailed
from rlhf_core.reward_model.stage import VALIDATION, run_stage
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
    """A run whose gate lets everything pass that is no worse than chance could be."""
    gate = {"min_accuracy": 0.5, "confidence": 0.51, "max_length_correlation": 1.0}
    settings = {"reward_model": {"train": TRAIN, "gate": gate}}
    runtime, _ = make_stage_runtime(tmp_path_factory.mktemp("run"), world, **settings)
    return runtime, run_stage(runtime)


def test_it_trains_judges_and_keeps_a_model_that_scores(trained):
    runtime, result = trained
    facts = read_json(runtime.folder.reward_model / VALIDATION)
    assert result.path == runtime.folder.reward_model / "model"
    assert result.accuracy == facts["accuracy"]["value"] and facts["accuracy"]["low"] < result.accuracy
    assert facts["word_baseline_accuracy"]["pairs"] == facts["accuracy"]["pairs"]
    assert set(facts["by_domain"]) and facts["failures"] == []
    scores = runtime.scorer().score([{"prompt": "where is it ?", "response": text} for text in ("here", "")])
    assert scores[0] != scores[1]


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
