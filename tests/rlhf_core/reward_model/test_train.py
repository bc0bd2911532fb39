import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from rlhf_core.config.models import ModelConfig
from rlhf_core.config.reward import RewardModelTrainingConfig
from rlhf_core.errors import ConfigError, DataError, NumericsError
from rlhf_core.models.pair_packing import PairTokens
from rlhf_core.models.reward_model import DialogueForm, RewardModel, new_reward_model
from rlhf_core.reward_model.train import (
    batches_of_like_length,
    bradley_terry_loss,
    choose_trainable,
    pair_accuracy,
    train_reward_model,
)
from rlhf_core.seeding import derive_seed
from tests.tiny_model import make_tiny_model

GOOD, BAD = 20, 21


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def fresh(folder) -> RewardModel:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return new_reward_model(ModelConfig(policy=str(folder)), tokenizer, DialogueForm(32), torch.device("cpu"))


def pairs_of(count: int) -> list[PairTokens]:
    """The chosen response holds the word GOOD where the rejected one holds BAD."""
    rng = np.random.default_rng(0)

    def words() -> tuple[int, ...]:
        return tuple(int(i) for i in rng.integers(30, 200, rng.integers(1, 6)))

    return [PairTokens(words(), (*words(), GOOD, 2), (*words(), BAD, 2)) for _ in range(count)]


CONFIG = RewardModelTrainingConfig(
    trainable_layers=1,
    learning_rate=3e-3,
    batch_pairs=8,
    micro_batch_pairs=4,
    epochs=3,
    validation_fraction=0.2,
    patience=99,
)


@given(st.lists(st.tuples(st.floats(-30, 30), st.floats(-30, 30)), min_size=1, max_size=5), st.floats(0, 5))
def test_the_loss_is_bradley_terrys_beyond_the_margin(rows, margin):
    scores = torch.tensor(rows, dtype=torch.float64)
    for given_margin in (0.0, margin):
        want = math.fsum(math.log1p(math.exp(-(chosen - rejected - given_margin))) for chosen, rejected in rows)
        assert float(bradley_terry_loss(scores, given_margin)) == pytest.approx(want, rel=1e-9, abs=1e-12)
    assert bradley_terry_loss(scores) == bradley_terry_loss(scores, 0.0)


def test_training_starts_at_the_loss_of_the_margin_that_is_set(folder):
    config = CONFIG.model_copy(update={"margin": 1.0, "epochs": 1})
    report = train_reward_model(fresh(folder), pairs_of(40), config, seed=0)
    assert report.training_losses[0] == pytest.approx(math.log1p(math.e), abs=1e-6)  # All scores are 0 at first.
    assert report.history[0].loss > math.log(2)


def test_ties_count_half():
    assert pair_accuracy(torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0], [3.0, 1.0]])) == 2.5 / 4


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 7))
def test_batches_hold_every_pair_once(lengths, size):
    batches = batches_of_like_length(lengths, size, np.random.default_rng(0))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert all(len(batch) <= size for batch in batches)
    for batch in batches:
        assert [lengths[i] for i in batch] == sorted((lengths[i] for i in batch), reverse=True)


def test_training_learns_a_plain_preference_and_leaves_the_lower_layers_alone(folder):
    reward_model = fresh(folder)
    before = {name: weight.clone() for name, weight in reward_model.model.state_dict().items()}
    advanced: list[int] = []
    report = train_reward_model(reward_model, pairs_of(120), CONFIG, seed=0, advance=advanced.append)
    assert report.best.accuracy > 0.9
    changed = {
        name for name, weight in reward_model.model.state_dict().items() if not torch.equal(weight, before[name])
    }
    assert changed
    assert all(name.startswith(("model.layers.1.", "model.norm.", "score.")) for name in changed)
    assert sum(advanced) == 3 * 96 and report.steps == 36 and len(report.training_losses) == 36
    assert report.training_losses[0] == pytest.approx(math.log(2), abs=1e-6)


def test_the_lower_layers_build_no_graph(folder):
    reward_model = fresh(folder)
    choose_trainable(reward_model, 1)
    seen: list[bool] = []
    for layer in reward_model.body.layers:
        layer.register_forward_hook(lambda module, inputs, output: seen.append(output.requires_grad))
    reward_model.forward_pairs(pairs_of(2))
    assert seen == [False, True]


def test_the_same_seed_gives_the_same_weights(folder):
    found = []
    for _ in range(2):
        reward_model = fresh(folder)
        train_reward_model(reward_model, pairs_of(40), CONFIG, seed=5)
        found.append(reward_model.model.state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_micro_batches_add_up_to_the_same_training(folder):
    found = []
    for size in (8, 3):
        reward_model = fresh(folder)
        config = CONFIG.model_copy(update={"micro_batch_pairs": size, "epochs": 1})
        found.append(train_reward_model(reward_model, pairs_of(40), config, seed=1).training_losses)
    assert found[0] == pytest.approx(found[1], abs=1e-5)


def test_training_stops_when_validation_stops_improving_and_keeps_the_best_weights(folder):
    reward_model = fresh(folder)
    config = CONFIG.model_copy(update={"epochs": 50, "patience": 2})
    report = train_reward_model(reward_model, pairs_of(60), config, seed=0)
    assert report.is_stopped_early and report.steps < 50 * 6
    assert report.best == max(report.history, key=lambda point: (point.accuracy, -point.loss))
    order = np.random.Generator(np.random.PCG64(derive_seed(0, "reward_model")))
    held = [pairs_of(60)[i] for i in order.permutation(60)[:12]]
    scores = reward_model.score_pairs(held, 4).double()
    assert pair_accuracy(scores) == report.best.accuracy
    assert float(bradley_terry_loss(scores)) / 12 == pytest.approx(report.best.loss, abs=1e-5)


def test_all_layers_train_where_no_number_is_given(folder):
    reward_model = fresh(folder)
    assert len(choose_trainable(reward_model, None)) == len(list(reward_model.model.parameters()))


def test_too_many_layers_too_few_pairs_and_a_broken_model_are_refused(folder):
    reward_model = fresh(folder)
    with pytest.raises(ConfigError, match=r"trainable_layers=3, .* has 2"):
        choose_trainable(reward_model, 3)
    with pytest.raises(DataError, match="at least 2 preference pairs"):
        train_reward_model(reward_model, pairs_of(1), CONFIG, seed=0)
    with torch.no_grad():
        reward_model.model.score.weight.fill_(torch.nan)
    with pytest.raises(NumericsError, match="learning_rate"):
        train_reward_model(reward_model, pairs_of(10), CONFIG, seed=0)
