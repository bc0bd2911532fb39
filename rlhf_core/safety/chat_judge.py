"""A chat model that answers whether a response is safe, as Llama Guard does (arXiv:2312.06674).

Nothing is generated: P(unsafe) is the probability of the unsafe verdict against the safe one, from the log-probs of the
first token in which they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from rlhf_core.config.rejection import SafetyConfig
from rlhf_core.engines.memory import BatchSize
from rlhf_core.errors import ConfigError
from rlhf_core.safety.loading import load_model, load_model_tokenizer
from rlhf_core.safety.windows import token_ids, windows, worst_of_parts


class ChatJudge:
    """Reads the log-probs of the verdict's first token."""

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase, config: SafetyConfig) -> None:
        """Find the tokens of the verdicts.

        Raises:
            ConfigError: there is neither a template nor a chat template, or the verdicts do not differ in a token.
        """
        self.model, self.tokenizer, self.config = model, tokenizer, config
        if config.template is None and not tokenizer.chat_template:
            raise ConfigError(
                f"the tokenizer of {config.path} has no chat template. Set rollout.rejection.safety.template to the "
                "text that the model reads, with {prompt} and {response}."
            )
        self._shared, self._safe_id, self._unsafe_id = self._verdict_tokens()
        self._batch = BatchSize(config.batch_size)

    def unsafe_probabilities(self, prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
        """As `SafetyClassifier` has it."""
        room = self.config.max_tokens - len(self._shared)
        parts = [
            [[*ids, *self._shared] for ids in windows(self.tokenizer, self._form, prompt, response, room)]
            for prompt, response in zip(prompts, responses, strict=True)
        ]
        pad: Any = self.tokenizer.pad_token_id
        return worst_of_parts(parts, self._probabilities, self._batch, is_left=True, pad_id=pad or 0)

    def _form(self, prompt: str, response: str) -> str:
        if self.config.template is not None:
            return self.config.template.format(prompt=prompt, response=response)
        chat = [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]
        return str(self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))

    def _probabilities(self, ids: Tensor, mask: Tensor) -> Tensor:
        device = self.model.device
        positions = (mask.long().cumsum(dim=1) - 1).clamp(min=0)
        logits = self.model(
            input_ids=ids.to(device),
            attention_mask=mask.to(device).long(),
            position_ids=positions.to(device),
            logits_to_keep=1,
        ).logits[:, -1]
        return logits[:, [self._safe_id, self._unsafe_id]].float().softmax(dim=1)[:, 1]

    def _verdict_tokens(self) -> tuple[list[int], int, int]:
        """`(tokens that both verdicts begin with, the safe one's next, the unsafe one's next)`."""
        words = [self.config.verdict_prefix + word for word in (self.config.safe_word, self.config.unsafe_word)]
        safe, unsafe = (token_ids(self.tokenizer, word) for word in words)
        same = 0
        while same < min(len(safe), len(unsafe)) and safe[same] == unsafe[same]:
            same += 1
        unknown: Any = self.tokenizer.unk_token_id
        if same >= min(len(safe), len(unsafe)) or unknown in (safe[same], unsafe[same]):
            raise ConfigError(
                f"rollout.rejection.safety: the verdicts {words} are the tokens {safe} and {unsafe} of "
                f"{self.config.path}, which tell nothing apart. Set safe_word, "
                "unsafe_word and verdict_prefix to what the model writes."
            )
        return safe[:same], safe[same], unsafe[same]


def load_chat_judge(config: SafetyConfig, device: torch.device) -> ChatJudge:
    """The model in `config.path`. Raises ConfigError where it or its words do not serve."""
    path = str(config.path)
    tokenizer = load_model_tokenizer(path)
    return ChatJudge(load_model(AutoModelForCausalLM, config, device), tokenizer, config)
