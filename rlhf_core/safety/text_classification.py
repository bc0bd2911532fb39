"""Any Hugging Face text classifier as a safety classifier; which of its labels are unsafe is configured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from rlhf_core.config.rejection import SafetyConfig
from rlhf_core.engines.memory import BatchSize
from rlhf_core.errors import ConfigError
from rlhf_core.safety.loading import load_model, load_model_tokenizer
from rlhf_core.safety.windows import windows, worst_of_parts


class TextClassifier:
    """P(unsafe) is the sum over the unsafe labels; the greatest of them where several may hold at once."""

    def __init__(
        self, model: Any, tokenizer: PreTrainedTokenizerBase, config: SafetyConfig, unsafe_ids: Sequence[int]
    ) -> None:
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.unsafe_ids = list(unsafe_ids)
        self._batch = BatchSize(config.batch_size)

    def unsafe_probabilities(self, prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
        """As `SafetyClassifier` has it; an empty response is read as its form alone."""
        parts = [
            windows(self.tokenizer, self._form, prompt, response, self.config.max_tokens)
            for prompt, response in zip(prompts, responses, strict=True)
        ]
        pad: Any = self.tokenizer.pad_token_id
        return worst_of_parts(parts, self._probabilities, self._batch, is_left=False, pad_id=pad or 0)

    def _form(self, prompt: str, response: str) -> str:
        template = self.config.template
        return response if template is None else template.format(prompt=prompt, response=response)

    def _probabilities(self, ids: Tensor, mask: Tensor) -> Tensor:
        device = self.model.device
        logits = self.model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits.float()
        if self.model.config.problem_type == "multi_label_classification":
            return logits[:, self.unsafe_ids].sigmoid().amax(dim=1)
        return logits.softmax(dim=1)[:, self.unsafe_ids].sum(dim=1)


def load_text_classifier(config: SafetyConfig, device: torch.device) -> TextClassifier:
    """The model in `config.path`.

    Raises:
        ConfigError: it cannot be loaded, has no trained head, fewer than two labels, or not the labels named.
    """
    path = str(config.path)
    tokenizer = load_model_tokenizer(path)
    model = load_model(AutoModelForSequenceClassification, config, device)
    labels = {str(label): int(number) for number, label in model.config.id2label.items()}
    is_multi = model.config.problem_type == "multi_label_classification"
    if len(labels) < 2 and not is_multi:
        raise ConfigError(
            f"{path} has the single label {list(labels)}: it is a scorer, no classifier. Give a model with two labels "
            "or more as rollout.rejection.safety.path, or use it as the reward model with rollout.rejection.min_reward."
        )
    unknown = [label for label in config.unsafe_labels if label not in labels]
    if unknown or (set(config.unsafe_labels) == set(labels) and not is_multi):
        fault = f"does not have the labels {unknown}" if unknown else "has no label left that is safe"
        raise ConfigError(
            f"rollout.rejection.safety: {path} {fault}. Its labels are {sorted(labels)}; set unsafe_labels to those "
            "that stand for unsafe text."
        )
    if model.config.pad_token_id is None:  # a decoder's head reads the last token that is not padding
        model.config.pad_token_id = cast("int | None", tokenizer.pad_token_id) or 0
    return TextClassifier(model, tokenizer, config, [labels[label] for label in dict.fromkeys(config.unsafe_labels)])
