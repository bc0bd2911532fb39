"""Benchmarks through the harness, on local items and on a task of the harness's own kind."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from rlhf_core.config.evaluation import BenchmarkConfig, EvaluationConfig
from rlhf_core.engines.prefix_scorer import ModelScorer
from rlhf_core.errors import ConfigError, DataError
from rlhf_core.evaluation import benchmarks
from rlhf_core.evaluation.benchmarks import ITEM_SCHEMA, MARGIN_LIMIT, answer_benchmarks, choice_margin
from rlhf_core.evaluation.local_tasks import load_hellaswag, write_local_task
from tests.tiny_model import make_tiny_world

MMLU = BenchmarkConfig(name="mmlu_local", format="mmlu_csv", path="mmlu", items=12)
HELLASWAG = BenchmarkConfig(name="hellaswag_local", format="hellaswag_jsonl", path="hellaswag.jsonl", items=12)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_tiny_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def tokenizer(world):
    return AutoTokenizer.from_pretrained(world.model)


@pytest.fixture(scope="module")
def tasks(world, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    for benchmark in (MMLU, HELLASWAG):
        write_local_task(benchmark, world.data, folder, folder, 1)
    return folder


def answer(model, tokenizer, tasks, *chosen):
    done: list[int] = []
    frame = answer_benchmarks(ModelScorer(model), tokenizer, EvaluationConfig(benchmarks=chosen), tasks, done.append)
    return frame, sum(done)


def test_every_item_is_answered_as_its_likelihoods_say(world, tokenizer, tasks):
    model = LlamaForCausalLM.from_pretrained(world.model).eval()
    frame, done = answer(model, tokenizer, tasks, MMLU, HELLASWAG)
    assert list(frame.columns) == ITEM_SCHEMA.names and done == 4 * len(frame) == 96
    assert frame["benchmark"].value_counts().to_dict() == {"mmlu_local": 12, "hellaswag_local": 12}
    assert frame["item_id"].is_unique and frame["stratum"].nunique() > 2
    items = {item.item_id: item for item in load_hellaswag(world.data / "hellaswag.jsonl", 0)}
    for row in frame.to_dict("records"):
        scores = np.array(row["loglikelihoods"])
        if row["benchmark"] == "hellaswag_local":
            item = items[row["item_id"]]
            assert row["answer"] == item.answer
            scores = scores / [len(choice) for choice in item.choices]
        assert row["correct"] == (scores.argmax() == row["answer"])
        assert row["margin"] == pytest.approx(scores[row["answer"]] - np.delete(scores, row["answer"]).max())
    again, _ = answer(model, tokenizer, tasks, MMLU, HELLASWAG)
    assert again.equals(frame)


def test_a_policy_of_nan_is_wrong_everywhere(world, tokenizer, tasks):
    model = LlamaForCausalLM.from_pretrained(world.model).eval()
    torch.nn.init.constant_(model.model.norm.weight, math.nan)
    frame, _ = answer(model, tokenizer, tasks, MMLU, HELLASWAG)
    assert not frame["correct"].any() and (frame["margin"] == -MARGIN_LIMIT).all()


def test_without_benchmarks_the_table_is_empty_and_has_its_columns(tmp_path):
    frame = answer_benchmarks(None, None, EvaluationConfig(), tmp_path, lambda done: None)
    assert list(frame.columns) == ITEM_SCHEMA.names and frame.empty


@pytest.mark.parametrize(
    ("likelihoods", "lengths", "answer_", "margin"),
    [
        ([-1.0, -3.0], None, 0, 2.0),
        ([-1.0, -3.0], None, 1, -2.0),
        ([-2.0, -3.0], [1, 3], 1, 1.0),
        ([math.nan, -3.0], None, 0, -MARGIN_LIMIT),
        ([-math.inf, -3.0], None, 0, -MARGIN_LIMIT),
        ([-1.0, math.nan, -2.0], None, 0, 1.0),
        ([-1.0, -math.inf], None, 0, MARGIN_LIMIT),
    ],
)
def test_margin_of_hand_worked_items(likelihoods, lengths, answer_, margin):
    assert choice_margin(likelihoods, lengths, answer_) == pytest.approx(margin)


def hub(monkeypatch, tasks, name, **changes):
    """Let the harness find a task of this name among 'its own', as a hub task is found."""
    import yaml
    from lm_eval import tasks as harness

    definition = yaml.safe_load((tasks / "mmlu_local.yaml").read_text()) | {"task": name} | changes
    folder = tasks.parent / f"hub_{name}"
    folder.mkdir()
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(definition))
    manager = harness.TaskManager
    monkeypatch.setattr(harness, "TaskManager", lambda: manager(include_path=str(folder), include_defaults=False))


def test_a_hub_task_is_answered_on_a_fixed_subset(monkeypatch, world, tokenizer, tasks, tmp_path):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    hub(monkeypatch, tasks, "from_hub")
    model = LlamaForCausalLM.from_pretrained(world.model).eval()
    whole, _ = answer(model, tokenizer, tasks, BenchmarkConfig(name="from_hub", items=None))
    part, _ = answer(model, tokenizer, tasks, BenchmarkConfig(name="from_hub", items=10))
    assert (len(whole), len(part)) == (12, 10)
    merged = part.merge(whole, on="item_id", suffixes=("", "_whole"))
    assert len(merged) == 10 and (merged["margin"] == merged["margin_whole"]).all()


def test_a_hub_task_that_is_unknown_unreachable_or_not_multiple_choice_is_refused(
    monkeypatch, world, tokenizer, tasks, tmp_path
):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    model = LlamaForCausalLM.from_pretrained(world.model).eval()
    hub(monkeypatch, tasks, "free_text", output_type="generate_until", metric_list=[{"metric": "exact_match"}])
    with pytest.raises(ConfigError, match="'generate_until' task"):
        answer(model, tokenizer, tasks, BenchmarkConfig(name="free_text"))
    with pytest.raises(ConfigError, match="knows no task 'nothing'"):
        answer(model, tokenizer, tasks, BenchmarkConfig(name="nothing"))
    monkeypatch.undo()
    hub(monkeypatch, tasks, "gone", dataset_kwargs={"data_files": {"test": str(tmp_path / "none.jsonl")}})
    with pytest.raises(DataError, match="cannot be loaded from the hub"):
        answer(model, tokenizer, tasks, BenchmarkConfig(name="gone"))


@pytest.mark.parametrize("wrong", [[0, 1], "E", 7])
def test_an_item_without_a_single_answer_is_refused(wrong):
    class Task:
        multiple_input = 0

        def doc_to_target(self, doc):
            return doc["answer"]

    with pytest.raises(ConfigError, match="no single right choice"):
        benchmarks._answer_index(Task(), {"answer": wrong}, ["A", "B"], "odd")
    assert benchmarks._answer_index(Task(), {"answer": "B"}, ["A", "B"], "fine") == 1
