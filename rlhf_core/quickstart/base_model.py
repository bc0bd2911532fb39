"""Training the quickstart's small Llama on the world's texts: a fixed number of steps, so that a seed is a model."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlhf_core.quickstart.tokenizer import BOS, EOS, PAD, build_tokenizer, save_tokenizer, token_id, words_of
from rlhf_core.quickstart.world import World

IGNORED_LABEL = -100
TRAINING_REPORT = "training.json"


@dataclass(frozen=True)
class BaseModelSettings:
    """Size of the Llama and length of its training.

    `threads` is fixed because sums depend on it; at this size a second thread saves a quarter of the time on an idle
    machine and loses many times that on a busy one.
    """

    hidden_size: int = 128
    intermediate_size: int = 344
    layers: int = 4
    heads: int = 4
    steps: int = 430
    batch_rows: int = 24
    row_tokens: int = 48
    learning_rate: float = 6e-3
    warmup_steps: int = 20
    weight_decay: float = 0.05
    gradient_norm: float = 1.0
    threads: int = 1


def train_base_model(world: World, settings: BaseModelSettings, folder: Path, *, echo: bool) -> None:
    """Train on the world's general text and SFT conversations, and write a Hugging Face folder with its tokenizer."""
    tokenizer = build_tokenizer(words_of(world.words()))
    documents = encode_documents(world, tokenizer)
    with _fixed_numerics(world.seed, settings.threads):
        model = LlamaForCausalLM(llama_config(settings, tokenizer))
        rows = packed_rows(
            documents, settings.row_tokens, token_id(tokenizer, BOS), random.Random(f"{world.seed}/rows")
        )
        losses = _train(model, rows, settings, pad_id=token_id(tokenizer, PAD), echo=echo)
    model.eval().save_pretrained(str(folder))
    save_tokenizer(tokenizer, folder)
    report = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "steps": settings.steps,
        "tokens": settings.steps * settings.batch_rows * settings.row_tokens,
        "first_loss_nats": losses[0],
        "last_loss_nats": sum(losses[-20:]) / len(losses[-20:]),
    }
    (folder / TRAINING_REPORT).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def llama_config(settings: BaseModelSettings, tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """The architecture: embeddings tied, so that few parameters go to the vocabulary."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=token_id(tokenizer, str(tokenizer.pad_token)),
        bos_token_id=token_id(tokenizer, str(tokenizer.bos_token)),
        eos_token_id=token_id(tokenizer, str(tokenizer.eos_token)),
    )


@dataclass(frozen=True)
class Document:
    """Token ids, and for each the label that the loss compares with: its id, or IGNORED_LABEL in a prompt."""

    ids: list[int]
    labels: list[int]


def encode_documents(world: World, tokenizer: PreTrainedTokenizerFast) -> list[Document]:
    """Every training text, ended by EOS; conversations go through the chat template, the prompt unlearned."""
    texts = tokenizer([f"{row['text']}{EOS}" for row in world.ptx_rows()])["input_ids"]
    documents = [Document(list(ids), list(ids)) for ids in texts]
    for row in world.sft_rows():
        turns = [{"role": "user", "content": row["prompt"]}]
        prompt = tokenizer.encode(str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)))
        response = tokenizer.encode(f"{row['response']}{EOS}")
        documents.append(Document([*prompt, *response], [*[IGNORED_LABEL] * len(prompt), *response]))
    return documents


def packed_rows(documents: Sequence[Document], row_tokens: int, bos_id: int, rng: random.Random) -> Iterator[Document]:
    """Endless rows of whole documents, in a new order each pass; half of them open with BOS, so that both are known.

    A document longer than a row is cut at the row's end.
    """
    order = list(range(len(documents)))
    row = Document([], [])
    while True:
        rng.shuffle(order)
        for index in order:
            document = documents[index]
            if row.ids and len(row.ids) + len(document.ids) > row_tokens:
                yield Document(row.ids[:row_tokens], row.labels[:row_tokens])
                start = [bos_id] if rng.random() < 0.5 else []
                row = Document(start, list(start))
            row = Document(row.ids + document.ids, row.labels + document.labels)


def _train(
    model: LlamaForCausalLM, rows: Iterator[Document], settings: BaseModelSettings, *, pad_id: int, echo: bool
) -> list[float]:
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=settings.weight_decay
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_share(step, settings))
    losses: list[float] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, disable=not echo) as progress:
        bar = progress.add_task("Training the quickstart's model", total=settings.steps)
        for _ in range(settings.steps):
            batch = [next(rows) for _ in range(settings.batch_rows)]
            loss = _row_loss(model, batch, pad_id)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_norm)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            progress.update(bar, advance=1, description=f"Training the quickstart's model, loss {losses[-1]:.2f}")
    return losses


def _row_loss(model: LlamaForCausalLM, rows: Sequence[Document], pad_id: int) -> Tensor:
    """Mean next-token cross-entropy, nats a token; padding is on the right, so causal attention never reaches it."""
    width = max(len(row.ids) for row in rows)
    ids = torch.tensor([row.ids + [pad_id] * (width - len(row.ids)) for row in rows])
    labels = torch.tensor([row.labels + [IGNORED_LABEL] * (width - len(row.ids)) for row in rows])
    logits = model(input_ids=ids, use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED_LABEL
    )


def learning_rate_share(step: int, settings: BaseModelSettings) -> float:
    """Linear warm-up, then a cosine down to a twentieth; as a share of the full learning rate."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    progress = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    return 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


@contextmanager
def _fixed_numerics(seed: int, threads: int) -> Generator[None]:
    """Seeded weights and a fixed number of threads inside; the caller's random state and threads outside."""
    before = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)
