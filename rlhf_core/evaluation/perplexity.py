"""Perplexity on general text that is never trained on (E1)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlhf_core.engines.protocols import TokenScorer

MAX_DOCUMENT_TOKENS = 512


def perplexity(scorer: TokenScorer, documents: Sequence[Sequence[int]], *, batch_size: int) -> float | None:
    """Return `exp` of the mean negative log-likelihood by token, infinite on overflow; None where no token is scored.

    A document's first token has nothing before it and is not scored; of a long one `MAX_DOCUMENT_TOKENS` count.

    Args:
        scorer: of the policy.
        documents: token ids.
        batch_size: documents per forward pass.
    """
    limit = min(MAX_DOCUMENT_TOKENS, scorer.max_length)
    pairs = [(list(document[:1]), list(document[1:limit])) for document in documents if len(document) > 1]
    tokens = sum(len(continuation) for _, continuation in pairs)
    if not tokens:
        return None
    scored = scorer.loglikelihoods(pairs, batch_size=batch_size, advance=lambda done: None)
    mean_loss = -sum(value for value, _ in scored) / tokens
    return math.exp(mean_loss) if mean_loss < 700.0 else math.nan if math.isnan(mean_loss) else math.inf
