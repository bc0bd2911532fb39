"""Whether a response has come to one of the texts that end it (E03)."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

_TOKENS_PER_CHARACTER = 4
_SLACK_TOKENS = 8


class StopStrings:
    """Looks at the decoded end of a response, so that a stop text may be cut into tokens in any way."""

    def __init__(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> None:
        self.texts = tuple(text for text in texts if text)
        self.tokenizer = tokenizer
        longest = max((len(text) for text in self.texts), default=0)
        self._window = _TOKENS_PER_CHARACTER * longest + _SLACK_TOKENS

    def is_reached(self, response_ids: Sequence[int]) -> bool:
        """Whether a stop text stands in the last tokens' text."""
        if not self.texts:
            return False
        tail = str(self.tokenizer.decode(list(response_ids[-self._window :]), skip_special_tokens=False))
        return any(text in tail for text in self.texts)
