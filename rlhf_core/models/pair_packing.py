"""Preference pairs as one sequence each: prompt, chosen, rejected, where the two responses share the prompt's tokens.

Read apart, the prompt of a pair would be computed twice; in chat data it is often the longer part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_PROMPT, _CHOSEN, _REJECTED, _PADDING = 0, 1, 2, 3


@dataclass(frozen=True)
class PairTokens:
    """Token ids of a pair; each response ends with EOS."""

    prompt: tuple[int, ...]
    chosen: tuple[int, ...]
    rejected: tuple[int, ...]

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.chosen) + len(self.rejected)

    def cut(self, max_tokens: int) -> PairTokens:
        """Keep the last tokens, so that prompt and longer response fit; both responses see the same prompt."""
        chosen, rejected = self.chosen[-max_tokens:], self.rejected[-max_tokens:]
        room = max_tokens - max(len(chosen), len(rejected))
        return PairTokens(self.prompt[-room:] if room else (), chosen, rejected)


@dataclass(frozen=True)
class PackedPairs:
    """Right-padded `[batch, width]` pairs; a response attends to the prompt and to itself."""

    ids: Tensor
    positions: Tensor
    attention: Tensor
    """bool `[batch, 1, width, width]`, True where a query may look; a padded place looks at itself alone."""
    last_tokens: Tensor
    """`[batch, 2]`: where the last token of chosen and rejected stands."""
    padded_tokens: int


def pack_pairs(pairs: Sequence[PairTokens], device: torch.device) -> PackedPairs:
    """Lay out pairs for one forward pass; both responses go on from the prompt's positions, masks come from lengths."""
    width = max(pair.length for pair in pairs)
    ids = torch.zeros(len(pairs), width, dtype=torch.long)
    positions = torch.zeros(len(pairs), width, dtype=torch.long)
    parts = torch.full((len(pairs), width), _PADDING)
    last_tokens = torch.zeros(len(pairs), 2, dtype=torch.long)
    for row, pair in enumerate(pairs):
        start = 0
        for part, tokens in ((_PROMPT, pair.prompt), (_CHOSEN, pair.chosen), (_REJECTED, pair.rejected)):
            end = start + len(tokens)
            first = 0 if part == _PROMPT else len(pair.prompt)
            ids[row, start:end] = torch.tensor(tokens, dtype=torch.long)
            positions[row, start:end] = torch.arange(first, first + len(tokens))
            parts[row, start:end] = part
            start = end
        last_tokens[row] = torch.tensor([len(pair.prompt) + len(pair.chosen) - 1, pair.length - 1])
    query, key = parts[:, :, None], parts[:, None, :]
    is_causal = torch.ones(width, width, dtype=torch.bool).tril()
    attention = (is_causal & ((key == _PROMPT) | (key == query)) & (query != _PADDING)) | torch.eye(
        width, dtype=torch.bool
    )
    used = sum(pair.length for pair in pairs)
    return PackedPairs(
        ids=ids.to(device),
        positions=positions.to(device),
        attention=attention[:, None].to(device),
        last_tokens=last_tokens.to(device),
        padded_tokens=len(pairs) * width - used,
    )
