"""The hierarchical value head against its definition, and that it sees neither the future nor a neighbour."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.decoders import ByteFallback, Fuse, Sequence
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from rlhf_core.config.models import ModelConfig
from rlhf_core.config.run import RunConfig
from rlhf_core.engines.packing import pack_rollouts
from rlhf_core.engines.torch_trainer import TorchTrainer
from rlhf_core.engines.trainer_state import load_trainer, save_trainer
from rlhf_core.errors import CheckpointError, ConfigError
from rlhf_core.models.heads import ValueModel
from rlhf_core.models.loading import load_critic
from rlhf_core.models.value_context import ContextHeads, context_starts, running_means, sentence_ends
from rlhf_core.update.ppo import PpoUpdate
from tests.rlhf_core.engines.trainer_case import (
    CONTROL,
    CPU,
    parameters,
    perturb,
    random_experience,
    random_rollouts,
    run_config,
)
from tests.tiny_model import make_tiny_model

SIZE, VOCAB, END = 5, 7, 3
packed_rows = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9), min_size=1, max_size=4)


def random_heads(weights: tuple[float, float] = (0.3, 0.1)) -> ContextHeads:
    heads = ContextHeads(SIZE, torch.arange(VOCAB) == END, weights)
    perturb(heads, scale=1.0)
    return heads


def random_hidden(tokens: int) -> torch.Tensor:
    return torch.randn(tokens, SIZE, generator=torch.Generator().manual_seed(tokens))


def definition(heads: ContextHeads, hidden: torch.Tensor, ids: list[int]) -> list[float]:
    """Oracle for one sequence: token by token, means of hidden states in plain Python, then the two heads."""
    sentence_weights, document_weights = (h.weight.double()[0].tolist() for h in (heads.sentence, heads.document))
    rows, found = hidden.double().tolist(), []
    for t in range(len(ids)):
        first = t
        while first > 0 and ids[first - 1] != END:
            first -= 1
        sentence, document = (
            sum(w * sum(row[i] for row in span) / len(span) for i, w in enumerate(weights))
            for weights, span in ((sentence_weights, rows[first : t + 1]), (document_weights, rows[: t + 1]))
        )
        found.append(0.3 * sentence + 0.1 * document)
    return found


@torch.no_grad()
@given(packed_rows)
def test_values_match_the_definition_in_every_sequence_of_a_packed_row(rows):
    heads, lengths = random_heads(), [len(row) for row in rows]
    ids = torch.tensor([token for row in rows for token in row])
    hidden = random_hidden(len(ids))
    want = [v for row, piece in zip(rows, hidden.split(lengths), strict=True) for v in definition(heads, piece, row)]
    torch.testing.assert_close(heads(hidden, ids, lengths), torch.tensor(want), rtol=1e-5, atol=1e-5)


def test_means_worked_by_hand():
    lengths, ends = (4, 2), torch.tensor([False, True, False, False, True, False])
    documents, sentences = context_starts(ends, lengths)
    assert documents.tolist() == [0, 0, 0, 0, 4, 4]
    assert sentences.tolist() == [0, 0, 2, 2, 4, 5]
    numbers = torch.tensor([1.0, 3.0, 5.0, 9.0, 2.0, 6.0], dtype=torch.float64)
    assert running_means(numbers, sentences, lengths).tolist() == [1, 2, 5, 7, 2, 6]
    assert running_means(numbers, documents, lengths).tolist() == [1, 2, 3, 4.5, 2, 4]


def test_a_sentence_late_in_a_long_text_keeps_its_digits():
    count, start = 20_000, 19_990
    numbers = torch.full((count,), 1e3) + torch.rand(count, generator=torch.Generator().manual_seed(0))
    starts = torch.cat([torch.zeros(start, dtype=torch.long), torch.full((count - start,), start)])
    found = running_means(numbers, starts, (count,))[start:].double()
    last = numbers[start:].double()
    want = torch.stack([last[: t + 1].mean() for t in range(count - start)])
    torch.testing.assert_close(found, want, rtol=1e-7, atol=0)


@torch.no_grad()
def test_what_a_neighbour_holds_changes_no_bit_of_a_sequence():
    heads, ids = random_heads(), torch.tensor([1, 2, END, 4, 5, 6])
    hidden = random_hidden(6)
    poisoned = torch.cat([hidden[:2], torch.full((2, SIZE), torch.nan), hidden[4:]])
    found, want = heads(poisoned, ids, (2, 2, 2)), heads(hidden, ids, (2, 2, 2))
    assert torch.equal(found[[0, 1, 4, 5]], want[[0, 1, 4, 5]])
    assert found[2:4].isnan().all()


def hierarchical(model: Path, **changes: object) -> RunConfig:
    return run_config(model, model={"policy": str(model), "value_head": "hierarchical"} | changes)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("context") / "model")


@pytest.fixture(scope="module")
def trainer(model: Path) -> TorchTrainer:
    """A trained-looking critic for which ids 7 to 10 end a sentence, so that random rollouts hold some."""
    made = TorchTrainer(hierarchical(model), CPU)
    perturb(made.critic, scale=0.3)
    assert made.critic.context is not None
    made.critic.context.is_sentence_end[7:11] = True
    return made


@torch.no_grad()
def test_the_future_changes_no_value_before_it(trainer):
    pack = pack_rollouts(random_rollouts(), torch.arange(8), with_last=True)
    before = trainer._values(pack)
    starts = [0, *torch.tensor(pack.lengths).cumsum(0).tolist()]
    changed = pack.ids.clone()
    kept = torch.ones(len(changed), dtype=torch.bool)
    for first, end in pairwise(starts):
        half = first + (end - first + 1) // 2
        changed[half:end] = (changed[half:end] + 7) % 40
        kept[half:end] = False
    after = trainer._values(type(pack)(**(vars(pack) | {"ids": changed})))
    torch.testing.assert_close(after[kept], before[kept], rtol=0, atol=1e-6)
    assert (after[~kept] - before[~kept]).abs().min() > 1e-4


@torch.no_grad()
def test_a_packed_sequence_is_worth_what_it_is_worth_alone(trainer):
    rollouts = random_rollouts()
    packed = trainer._values(pack_rollouts(rollouts, torch.arange(8), with_last=True))
    alone = torch.cat([trainer._values(pack_rollouts(rollouts, torch.tensor([i]), with_last=True)) for i in range(8)])
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-5)


def test_a_fresh_hierarchical_critic_values_everything_at_0_and_an_update_moves_all_its_heads(model):
    trainer = TorchTrainer(hierarchical(model), CPU)
    experience = random_experience(trainer, random_rollouts())
    assert not experience.old_values.any()
    PpoUpdate(trainer, experience, [], CONTROL).run(seed=3)
    moved = {n for n, p in parameters(trainer.critic).items() if "head" in n or "context" in n if p.any()}
    assert moved == {"head.weight", "head.bias", "context.sentence.weight", "context.document.weight"}
    assert trainer.evaluate(random_rollouts()).values.any()


def test_a_saved_trainer_comes_back_and_is_refused_by_a_flat_one(model, trainer, tmp_path):
    save_trainer(trainer, tmp_path / "step-000001")
    again = TorchTrainer(hierarchical(model), CPU)
    load_trainer(again, tmp_path / "step-000001")
    for name, parameter in parameters(trainer.critic).items():
        assert torch.equal(parameter, parameters(again.critic)[name]), name
    with pytest.raises(CheckpointError, match=r"model\.value_head=hierarchical"):
        load_trainer(TorchTrainer(run_config(model), CPU), tmp_path / "step-000001")


def test_a_critic_of_the_other_kind_or_with_other_weights_is_refused(model, trainer, tmp_path):
    flat, hierarchic = tmp_path / "flat", tmp_path / "hierarchic"
    ValueModel(trainer.critic.body).save(flat)
    trainer.critic.save(hierarchic)
    with pytest.raises(ConfigError, match=r"a flat value head .* expected a hierarchical"):
        load_critic(flat, hierarchical(model).model, CPU)
    with pytest.raises(ConfigError, match=r"a hierarchical value head .* expected a flat"):
        load_critic(hierarchic, ModelConfig(policy=str(model)), CPU)
    with pytest.raises(ConfigError, match=r"count \[0.3.*, 0.1.*value_head_weights=\[0.5, 0.25\]"):
        load_critic(hierarchic, hierarchical(model, value_head_weights=(0.5, 0.25)).model, CPU)


def test_sentence_ends_are_read_off_the_tokens_texts():
    words = [
        "word",
        ".",
        "!",
        "?",
        "...",
        '."',
        ".)",
        "\n",
        "end.\n",
        "。",
        "！",
        "？",
        ",",
        "3.1",
        ":",
        '"',
        "",
        "a\nb",
    ]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="word"))
    tokenizer.decoder = Sequence([ByteFallback(), Fuse()])
    found = sentence_ends(PreTrainedTokenizerFast(tokenizer_object=tokenizer), len(words) + 2)
    assert [words[i] for i in found.nonzero().flatten().tolist()] == words[1:12]
    assert len(found) == len(words) + 2
    assert int(sentence_ends(PreTrainedTokenizerFast(tokenizer_object=tokenizer), 3).sum()) == 2
