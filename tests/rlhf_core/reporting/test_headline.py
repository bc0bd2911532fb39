"""The outcome in words follows the numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_core.reporting.headline import next_steps, outcome_sentence, tiles
from rlhf_core.reporting.sources import RunRecord, load_run
from tests.rlhf_core.reporting.run_folder import make_run, share, write_reward_model


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return load_run(make_run(tmp_path_factory.mktemp("runs") / "run", rounds=1, per_round=2))


def with_evaluation(run: RunRecord, **changes: object) -> RunRecord:
    gate = run.gates[-1]
    return replace(run, gates=(replace(gate, evaluation=gate.evaluation.model_copy(update=changes)),))


def with_last(run: RunRecord, **metrics: float) -> RunRecord:
    names = {name.replace("__", "/"): value for name, value in metrics.items()}
    return replace(run, metrics=run.metrics.assign(**names))


@pytest.mark.parametrize(
    ("low", "value", "high", "words"),
    [
        (0.2, 0.5, 0.8, "earns +0.50 baseline standard deviations"),
        (-0.1, 0.5, 1.1, "no measurably different reward"),
        (-0.8, -0.5, -0.2, "earns less reward than the baseline"),
        (float("nan"), float("nan"), float("nan"), "gave no finite reward"),
    ],
)
def test_the_gain_is_called_a_gain_only_when_its_interval_excludes_zero(run, low, value, high, words):
    changed = with_evaluation(run, reward_gain=value, reward_gain_low=low, reward_gain_high=high)
    assert words in outcome_sentence(changed)


def test_a_real_drop_is_named_and_noise_is_not(run):
    (first, second) = run.gates[-1].evaluation.benchmarks
    lost = first.model_copy(update={"drop": 0.05, "drop_low": 0.02, "drop_high": 0.08, "p_value": 0.001})
    assert "with a proven loss on mmlu" in outcome_sentence(with_evaluation(run, benchmarks=(lost, second)))
    assert "with no proven loss on mmlu, hellaswag" in outcome_sentence(run)
    noise = lost.model_copy(update={"p_value": 0.125})
    assert "with no proven loss" in outcome_sentence(with_evaluation(run, benchmarks=(noise, second)))


@pytest.mark.parametrize(
    ("metric", "value", "words"),
    [
        ("experience__kl_exact_nats", 0.2, "raise kl.start"),
        ("reward__clipped_fraction", 0.4, "reward.clip"),
        ("rollout__truncated_fraction", 0.9, "max_new_tokens"),
    ],
)
def test_a_symptom_in_the_last_iteration_becomes_advice(run, metric, value, words):
    assert not [step for step in next_steps(run) if words in step]
    assert [step for step in next_steps(with_last(run, **{metric: value})) if words in step]


def test_a_reward_model_that_word_counts_beat_is_called_weak(tmp_path: Path):
    folder = make_run(tmp_path / "run", rounds=1, per_round=1)
    write_reward_model(folder, word_baseline_accuracy=share(0.7, 500))
    run = load_run(folder)
    assert [step for step in next_steps(run) if "does not beat word counts" in step]
    assert next(tile for tile in tiles(run) if tile.label == "reward model accuracy").tone == "warn"


def test_a_run_without_benchmarks_says_that_abilities_are_unseen(run):
    assert [step for step in next_steps(with_evaluation(run, benchmarks=())) if "No benchmark was run" in step]


def test_the_folder_that_a_finished_run_advises_is_there(run):
    advised = next(step for step in next_steps(run) if "promoted policy" in step)
    place = re.search(r"Hugging Face folder: (\S+)\. ", advised)
    assert place and (Path(place[1]) / "config.json").is_file()
