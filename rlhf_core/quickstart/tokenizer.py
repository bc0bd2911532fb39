"""A word-level tokenizer for the quickstart's texts, as a plain Hugging Face folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

PAD, BOS, EOS, UNKNOWN, USER, ASSISTANT = "<|pad|>", "<|bos|>", "<|eos|>", "<|unk|>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = (PAD, BOS, EOS, UNKNOWN, USER, ASSISTANT)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|eos|>"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# Words of the usual multiple-choice prompts, so that they are read whatever the world's own words are.
PROMPT_TEXT = "Question: A. B. C. D. Answer: The following are multiple choice questions (with answers) about, ! ?"


def words_of(texts: Iterable[str]) -> set[str]:
    """The distinct words and punctuation marks of some texts, cut as the tokenizer cuts them."""
    cutter = pre_tokenizers.Whitespace()
    return {word for text in texts for word, _ in cutter.pre_tokenize_str(text)}


def build_tokenizer(words: Iterable[str], *, max_length: int = 256) -> PreTrainedTokenizerFast:
    """A tokenizer with one id a word; special tokens first, then the words in alphabetical order.

    It adds no special token by itself: the chat template and the callers do. Decoding puts punctuation back where it
    was, so that a decoded text encodes to the same ids.
    """
    vocabulary = [*SPECIAL_TOKENS, *sorted(set(words) | words_of([PROMPT_TEXT]))]
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(vocabulary)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        additional_special_tokens=[USER, ASSISTANT],
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the tokenizer's files into a model folder."""
    tokenizer.save_pretrained(str(folder))


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """The id of one token of the vocabulary."""
    return tokenizer.get_vocab()[token]
