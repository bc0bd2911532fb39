"""From messages to tokens, by the tokenizer's own chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from transformers import PreTrainedTokenizerBase

from rlhf_core.data.transcripts import Message
from rlhf_core.errors import ConfigError


def require_chat_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises ConfigError when the tokenizer cannot format a chat."""
    if tokenizer.chat_template is None:
        raise ConfigError(
            f"the tokenizer of {tokenizer.name_or_path!r} has no chat template, so prompts cannot be formatted. Use an "
            "instruction-tuned model, or put a chat_template.jinja into the model's folder."
        )


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], system_prompt: str | None = None
) -> list[int]:
    """Token ids that the policy continues: the chat so far and the opening of the assistant's turn.

    Raises:
        ConfigError: the tokenizer has no chat template, or the template refuses the messages.
    """
    from jinja2.exceptions import TemplateError

    require_chat_template(tokenizer)
    head = [Message(role="system", content=system_prompt)] if system_prompt is not None else []
    chat = [{"role": turn["role"], "content": turn["content"]} for turn in [*head, *messages]]
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        raise ConfigError(
            f"the chat template of {tokenizer.name_or_path!r} refuses roles {[turn['role'] for turn in chat]}: "
            f"{error}. "
            "If it takes no system message, leave data.system_prompt unset."
        ) from error
    return _token_ids(tokenizer, str(text))


def encode_dialogue(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], response: str, system_prompt: str | None = None
) -> list[int]:
    """Token ids of a prompt and a whole response: exactly `encode_prompt`, then the response, then EOS.

    The parts are tokenized apart, as a sampled response is, so that the prompt's ids never change with the response.
    """
    prompt_ids = encode_prompt(tokenizer, messages, system_prompt)
    end = [] if tokenizer.eos_token_id is None else [cast(int, tokenizer.eos_token_id)]
    return [*prompt_ids, *_token_ids(tokenizer, response), *end]


def _token_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return cast("list[int]", tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
