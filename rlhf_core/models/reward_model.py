"""A reward model: a Hugging Face sequence-classification model with one label, read at the last real token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging as hf_logging

from rlhf_core.config.models import ModelConfig
from rlhf_core.config.run import RunConfig
from rlhf_core.data.chat import encode_dialogue, encode_prompt
from rlhf_core.data.collate import padded
from rlhf_core.data.transcripts import prompt_messages
from rlhf_core.errors import ConfigError
from rlhf_core.models.loading import resolve_model
from rlhf_core.models.pair_packing import PairTokens, pack_pairs
from rlhf_core.models.precision import Autocast, autocast_context


@dataclass(frozen=True)
class DialogueForm:
    """How a dialogue becomes tokens; training and scoring must agree on it."""

    max_tokens: int
    system_prompt: str | None = None
    autocast: Autocast = "off"

    @classmethod
    def of(cls, config: RunConfig) -> DialogueForm:
        return cls(config.reward_model.train.max_tokens, config.data.system_prompt, config.model.autocast)


class RewardModel:
    """Scores dialogues and pairs with a sequence-classification model whose head is called `score`."""

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase, form: DialogueForm) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.form = form

    @property
    def body(self) -> Any:
        """The transformer without its head."""
        return getattr(self.model, self.model.base_model_prefix)

    def encode_dialogue(self, prompt: str, response: str) -> list[int]:
        """Chat template of the prompt, the response and EOS; of these the last `max_tokens`."""
        ids = encode_dialogue(self.tokenizer, prompt_messages(prompt), response, self.form.system_prompt)
        return ids[-self.form.max_tokens :]

    def encode_pair(self, prompt: str, chosen: str, rejected: str) -> PairTokens:
        """As `encode_dialogue` for both responses, which share the prompt's tokens."""
        messages = prompt_messages(prompt)
        prompt_ids = encode_prompt(self.tokenizer, messages, self.form.system_prompt)
        responses = [
            encode_dialogue(self.tokenizer, messages, response, self.form.system_prompt)[len(prompt_ids) :]
            for response in (chosen, rejected)
        ]
        return PairTokens(tuple(prompt_ids), *(tuple(ids) for ids in responses)).cut(self.form.max_tokens)

    def forward_pairs(self, pairs: Sequence[PairTokens]) -> Tensor:
        """Float32 scores `[pairs, 2]` of chosen and rejected; differentiable where the caller allows it."""
        packed = pack_pairs(pairs, self.model.device)
        with autocast_context(self.model.device, self.form.autocast):
            hidden = self.body(
                input_ids=packed.ids, attention_mask=packed.attention, position_ids=packed.positions, use_cache=False
            ).last_hidden_state
        last = hidden.gather(1, packed.last_tokens[:, :, None].expand(-1, -1, hidden.shape[-1]))
        return self._head(last)

    def forward_dialogues(self, dialogues: Sequence[Sequence[int]]) -> Tensor:
        """Float32 scores `[dialogues]`, read at each one's last token; padding is on the right and never looked at."""
        ids, mask = padded(dialogues, 0)
        ids, mask = ids.to(self.model.device), mask.to(self.model.device)
        with autocast_context(self.model.device, self.form.autocast):
            hidden = self.body(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        last = mask.sum(dim=1) - 1
        return self._head(hidden[torch.arange(len(ids), device=ids.device), last])

    def score_pairs(
        self, pairs: Sequence[PairTokens], batch_pairs: int, advance: Callable[[int], None] | None = None
    ) -> Tensor:
        """Scores `[pairs, 2]` on the CPU, in batches of like length."""
        return _in_batches(self.forward_pairs, pairs, [pair.length for pair in pairs], batch_pairs, advance)

    def score_dialogues(
        self, dialogues: Sequence[Sequence[int]], batch_size: int, advance: Callable[[int], None] | None = None
    ) -> Tensor:
        """Scores `[dialogues]` on the CPU, in batches of like length."""
        return _in_batches(self.forward_dialogues, dialogues, [len(ids) for ids in dialogues], batch_size, advance)

    def save(self, folder: Path) -> None:
        """Write model and tokenizer; the folder scores alike when plain transformers loads it."""
        self.model.save_pretrained(str(folder))
        self.tokenizer.save_pretrained(str(folder))

    def _head(self, hidden: Tensor) -> Tensor:
        weight = self.model.score.weight.float()
        bias = getattr(self.model.score, "bias", None)
        with torch.autocast(hidden.device.type, enabled=False):
            return torch.nn.functional.linear(hidden.float(), weight, bias).squeeze(-1)


def new_reward_model(
    config: ModelConfig, tokenizer: PreTrainedTokenizerBase, form: DialogueForm, device: torch.device
) -> RewardModel:
    """The SFT model with a score head of zeros, in float32; it scores everything 0 until it is trained.

    Raises:
        ConfigError: the architecture has no sequence-classification form with a `score` head.
    """
    model, _ = _load(config.policy, config.revision, num_labels=1)
    if not hasattr(model, "score"):
        raise ConfigError(
            f"{type(model).__name__} has no head named `score`, so no reward model can be trained from "
            f"{config.policy}. Give a trained one as reward_model.path, or start from a decoder-only model "
            "(Llama, Qwen, Mistral, …)."
        )
    torch.nn.init.zeros_(model.score.weight)
    model.config.pad_token_id = _pad_id(tokenizer)
    return RewardModel(model.to(device).eval(), tokenizer, form)


def load_reward_model(path: str, form: DialogueForm, device: torch.device) -> RewardModel:
    """A trained reward model from a folder or the hub.

    Raises:
        ConfigError: it cannot be loaded, has no trained head, more than one label, or no tokenizer.
    """
    model, missing = _load(path, None)
    if model.config.num_labels != 1 or missing or not hasattr(model, "score"):
        found = f"num_labels={model.config.num_labels}, weights that are missing: {missing or 'none'}"
        raise ConfigError(
            f"{path} is no reward model ({type(model).__name__}; {found}). Give a sequence-classification model "
            "of a decoder with num_labels=1 and a trained `score` head, or leave reward_model.path unset to train one."
        )
    try:
        tokenizer = cast(PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(path))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the reward model {path} has no tokenizer: {error}. Save its tokenizer into the folder."
        ) from error
    return RewardModel(model.to(device).eval(), tokenizer, form)


def _load(path: str, revision: str | None, **options: Any) -> tuple[Any, list[str]]:
    """`(model, names of weights that the files do not hold)`."""
    name = resolve_model(path)
    verbosity = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()  # A missing head is looked at here, not printed.
    try:
        model, info = AutoModelForSequenceClassification.from_pretrained(
            name,
            revision=revision or "main",
            dtype=torch.float32,
            attn_implementation="sdpa",
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"the model {path} cannot be loaded for sequence classification: {error}") from error
    finally:
        hf_logging.set_verbosity(verbosity)
    return model, sorted(map(str, info["missing_keys"]))


def _pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """A pad id that is not EOS: plain transformers scores at the last token that is not padding (E02)."""
    eos = tokenizer.eos_token_id
    named = cast("list[int | None]", [tokenizer.pad_token_id, tokenizer.unk_token_id])
    candidates = [*named, *sorted(tokenizer.all_special_ids), 0, 1]
    return next(i for i in candidates if i is not None and i != eos)


def _in_batches(
    forward: Callable[[Sequence[Any]], Tensor],
    items: Sequence[Any],
    lengths: Sequence[int],
    batch_size: int,
    advance: Callable[[int], None] | None,
) -> Tensor:
    """Run `forward` without gradient over the items, longest first; results in the items' order."""
    if not items:
        return torch.empty(0)
    order = sorted(range(len(items)), key=lambda i: (-lengths[i], i))
    scores: list[Tensor] = []
    with torch.no_grad():
        for start in range(0, len(order), batch_size):
            scores.append(forward([items[i] for i in order[start : start + batch_size]]).cpu())
            if advance is not None:
                advance(len(scores[-1]))
    found = torch.cat(scores)
    result = torch.empty_like(found)
    result[torch.tensor(order)] = found
    return result
