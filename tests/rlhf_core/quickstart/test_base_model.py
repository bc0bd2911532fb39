"""The quickstart's small Llama: its training loop, and items that a damaged model fails."""

from __future__ import annotations

import csv
import itertools
import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from rlhf_core.quickstart.base_model import (
    IGNORED_LABEL,
    BaseModelSettings,
    Document,
    encode_documents,
    learning_rate_share,
    packed_rows,
    train_base_model,
)
from rlhf_core.quickstart.tokenizer import build_tokenizer, words_of
from rlhf_core.quickstart.world import World, WorldSettings

SMALL_WORLD = WorldSettings(subjects_per_domain=4, sft_rows=100, ptx_rows=800)
SMALL_MODEL = BaseModelSettings(
    hidden_size=64, intermediate_size=128, layers=2, heads=2, steps=350, batch_rows=10, learning_rate=1e-2, threads=1
)


@dataclass(frozen=True)
class Trained:
    world: World
    folder: Path
    data: Path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    root = tmp_path_factory.mktemp("trained")
    world = World(SMALL_WORLD, 0)
    (root / "data").mkdir()
    world.write(root / "data")
    train_base_model(world, SMALL_MODEL, root / "model", echo=False)
    return Trained(world, root / "model", root / "data")


def item_accuracy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: Path) -> float:
    """Four-way accuracy by the log-likelihood of the choice's text, both formats together."""
    items: list[tuple[str, list[str], int]] = []
    for file in sorted((data / "mmlu/test").glob("*.csv")):
        with file.open(newline="") as rows:
            items += [(f"Question: {row[0]}\nAnswer:", row[1:5], "ABCD".index(row[5])) for row in csv.reader(rows)]
    for line in (data / "hellaswag.jsonl").read_text().splitlines():
        row = json.loads(line)
        items.append((f"{row['activity_label']}: {row['ctx']}", row["endings"], row["label"]))
    right = 0
    for context, choices, answer in items:
        start = len(tokenizer.encode(context))
        ids = torch.tensor([tokenizer.encode(f"{context} {choice}") for choice in choices])
        with torch.no_grad():
            logprobs = model(input_ids=ids).logits[:, :-1].log_softmax(-1)
        scores = logprobs.gather(2, ids[:, 1:, None])[:, start - 1 :, 0].sum(1)
        right += int(scores.argmax()) == answer
    return right / len(items)


def test_items_are_above_chance_and_fall_when_the_weights_are_perturbed(trained):
    tokenizer = AutoTokenizer.from_pretrained(str(trained.folder))
    model = AutoModelForCausalLM.from_pretrained(str(trained.folder)).eval()
    before = item_accuracy(model, tokenizer, trained.data)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.add_(torch.randn(weight.shape, generator=generator) * weight.std())
    after = item_accuracy(model, tokenizer, trained.data)
    assert before > 0.45
    assert after < before - 0.1


def test_training_lowers_the_loss_and_reports_it(trained):
    report = json.loads((trained.folder / "training.json").read_text())
    assert report["last_loss_nats"] < 0.6 * report["first_loss_nats"]
    model = AutoModelForCausalLM.from_pretrained(str(trained.folder))
    assert report["parameters"] == sum(weight.numel() for weight in model.parameters()) < 3_000_000


def test_the_same_seed_trains_the_same_bits_and_leaves_the_caller_undisturbed(tmp_path):
    short = BaseModelSettings(hidden_size=16, intermediate_size=32, layers=1, heads=2, steps=3, batch_rows=4, threads=2)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    for name in ("first", "second"):
        torch.rand(5)  # whatever the caller drew before must not matter
        before = torch.get_rng_state()
        train_base_model(World(SMALL_WORLD, 0), short, tmp_path / name, echo=False)
        assert torch.equal(torch.get_rng_state(), before)
    torch.set_rng_state(state)
    assert torch.get_num_threads() == threads
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "second")]
    assert files[0] == files[1]


def test_conversations_learn_the_response_and_its_eos_but_not_the_prompt():
    world = World(SMALL_WORLD, 0)
    tokenizer = build_tokenizer(words_of(world.words()))
    documents = encode_documents(world, tokenizer)
    assert len(documents) == SMALL_WORLD.ptx_rows + SMALL_WORLD.sft_rows
    row, document = world.sft_rows()[0], documents[SMALL_WORLD.ptx_rows]
    learned = [label for label in document.labels if label != IGNORED_LABEL]
    assert tokenizer.decode(learned) == f"{row['response']} <|eos|>"
    assert tokenizer.decode(document.ids[: -len(learned)]) == f"<|user|> {row['prompt']} <|assistant|>"
    assert all(text.labels == text.ids and text.ids[-1] == 2 for text in documents[: SMALL_WORLD.ptx_rows])


def test_rows_hold_whole_documents_and_never_exceed_their_length():
    documents = [Document([10 + n] * n, [10 + n] * n) for n in (2, 3, 5, 9)]
    for row in itertools.islice(packed_rows(documents, 12, 1, random.Random(0)), 200):
        assert 1 <= len(row.ids) <= 12 and row.labels == row.ids
        body = row.ids[1:] if row.ids[0] == 1 else row.ids
        for token in set(body):
            assert body.count(token) % (token - 10) == 0


def test_the_learning_rate_warms_up_and_decays_to_a_twentieth():
    settings = BaseModelSettings(steps=100, warmup_steps=10)
    assert learning_rate_share(0, settings) == pytest.approx(0.1)
    assert learning_rate_share(9, settings) == learning_rate_share(10, settings) == pytest.approx(1.0)
    assert learning_rate_share(55, settings) == pytest.approx(0.05 + 0.95 * (1 + math.cos(math.pi / 2)) / 2)
    assert learning_rate_share(100, settings) == pytest.approx(0.05)
