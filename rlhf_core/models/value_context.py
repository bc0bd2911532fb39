"""What the sentence so far and the text so far add to a token's value (A6)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

_ENDS = tuple(".!?…。！？｡．\n\r\u2028\u2029")
_CLOSING = " \t\"'”’»)]}」』）】"
"""What may follow a sentence's last mark within the same token."""


class ContextHeads(nn.Module):
    """Two heads, one on the mean hidden state of the sentence so far, one on that of the whole text so far.

    Both start at 0. They have no bias of their own: the token's head has one.
    """

    weights: Tensor
    is_sentence_end: Tensor

    def __init__(
        self, hidden_size: int, is_sentence_end: Bool[Tensor, " vocab"], weights: tuple[float, float] = (0.3, 0.1)
    ) -> None:
        """Keep what ends a sentence.

        Args:
            hidden_size: of the body.
            is_sentence_end: see `sentence_ends`.
            weights: what the sentence's and the text's values are multiplied by.
        """
        super().__init__()
        self.sentence = nn.Linear(hidden_size, 1, bias=False)
        self.document = nn.Linear(hidden_size, 1, bias=False)
        nn.init.zeros_(self.sentence.weight)
        nn.init.zeros_(self.document.weight)
        self.register_buffer("weights", torch.tensor(weights))
        self.register_buffer("is_sentence_end", is_sentence_end, persistent=False)

    def forward(
        self, hidden: Float[Tensor, "tokens hidden"], ids: Int[Tensor, " tokens"], lengths: Sequence[int]
    ) -> Float[Tensor, " tokens"]:
        """Return the weighted sum of both values after each token; one at t depends on tokens up to t alone.

        A head is linear, so its value of a mean is the mean of its values: one number a token is summed up.

        Args:
            hidden: of sequences that lie one after another.
            ids: their tokens.
            lengths: of the sequences; nothing goes over their borders.
        """
        document_starts, sentence_starts = context_starts(self.is_sentence_end[ids], lengths)
        sentence = running_means(self.sentence(hidden).squeeze(-1), sentence_starts, lengths)
        document = running_means(self.document(hidden).squeeze(-1), document_starts, lengths)
        return self.weights[0] * sentence + self.weights[1] * document


def context_starts(
    is_end: Bool[Tensor, " tokens"], lengths: Sequence[int]
) -> tuple[Int[Tensor, " tokens"], Int[Tensor, " tokens"]]:
    """Return where each token's sequence and sentence begin; an end belongs to the sentence that it ends."""
    sizes = torch.tensor(tuple(lengths), device=is_end.device)
    sequence_starts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes, output_size=len(is_end))
    places = torch.arange(len(is_end), device=is_end.device)
    is_first = places == sequence_starts
    is_first[1:] |= is_end[:-1]
    return sequence_starts, torch.where(is_first, places, 0).cummax(0).values


def running_means(
    numbers: Float[Tensor, " tokens"], starts: Int[Tensor, " tokens"], lengths: Sequence[int]
) -> Float[Tensor, " tokens"]:
    """Return the mean of the numbers from `starts[t]` up to and with t, for each t.

    Sums run in float64 and begin anew in each sequence, so that differences of long sums keep their digits and nothing,
    not even a NaN, goes from one sequence into the next.

    Args:
        numbers: one of each token.
        starts: where a token's mean begins, in its own sequence.
        lengths: of the sequences.
    """
    wide = numbers.double()
    sums = torch.cat([piece.cumsum(0) for piece in wide.split(tuple(lengths))])
    before = sums - wide  # of all tokens of the sequence before t
    counts = torch.arange(1, len(wide) + 1, device=wide.device) - starts
    return ((sums - before[starts]) / counts).to(numbers.dtype)


def sentence_ends(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> Bool[Tensor, " vocab"]:
    """Return for each id whether its text ends a sentence: a mark such as `.`, `!`, `?`, `。`, or a line's end.

    Closing quotes and brackets may follow the mark. A mark whose bytes are spread over several tokens is not seen.

    Args:
        tokenizer: knows the tokens' texts.
        vocab_size: rows of the model's embedding; ids that the tokenizer lacks end nothing.
    """
    known = min(len(tokenizer), vocab_size)
    texts = tokenizer.batch_decode([[token] for token in range(known)])
    ends = [text.rstrip(_CLOSING).endswith(_ENDS) for text in texts]
    return torch.tensor(ends + [False] * (vocab_size - known), dtype=torch.bool)
