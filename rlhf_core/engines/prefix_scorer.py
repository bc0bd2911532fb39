"""Log-likelihoods of a benchmark's choices, with the context that they share computed once.

A question and its choices stand in one row: context, choice 1, choice 2, … A 4-D mask lets each choice see the context
and itself, position ids let each continue right after the context, and the head is multiplied only where a choice's
token is predicted. Choices of one token (MMLU's letters) cost nothing beyond the context. A model for which such rows
do not give the plain result (a probe compares them first) is run with one plain row per choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlhf_core.engines.protocols import TokenPair
from rlhf_core.errors import DataError
from rlhf_core.models.precision import Autocast, autocast_context
from rlhf_core.numerics.head_matmul import autocast_dtype, cache_blocks

MAX_ROW_TOKENS = 1024
"""Attention grows with the square of a row; a context with more choices than fit is repeated in a second row."""
_DEFAULT_WINDOW = 2048
_PADDING = -1
_CONTEXT = 0
_PROBE_TOLERANCE_NATS = 1e-3


@dataclass(frozen=True)
class Continuation:
    """Tokens to score after a context, and where their result goes."""

    index: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class SharedRow:
    """One context and the continuations that are scored after it."""

    context: tuple[int, ...]
    continuations: tuple[Continuation, ...]

    @property
    def length(self) -> int:
        """Tokens that the model reads; a continuation's last token is predicted, never read."""
        return len(self.context) + sum(len(one.tokens) - 1 for one in self.continuations)


@dataclass(frozen=True)
class _Targets:
    """Predicted tokens of a batch: `row` and `column` of the predicting position, the token, the result it adds to."""

    row: Tensor
    column: Tensor
    token: Tensor
    result: Tensor


class ModelScorer:
    """A `TokenScorer` on a model that lives in this process."""

    def __init__(self, model: Any, *, autocast: Autocast = "off") -> None:
        """Keep a Hugging Face causal language model in eval mode; its weights may change between calls."""
        self.model = model
        self.autocast: Autocast = autocast
        self.max_length = model_window(model)

    def loglikelihoods(
        self, pairs: Sequence[TokenPair], *, batch_size: int, advance: Callable[[int], None] = lambda done: None
    ) -> list[tuple[float, bool]]:
        """See `TokenScorer`."""
        with autocast_context(self.model.device, self.autocast):
            return loglikelihoods(self.model, pairs, max_length=self.max_length, batch_size=batch_size, advance=advance)


def model_window(model: Any) -> int:
    """Tokens that a model can read."""
    return int(getattr(model.config, "max_position_embeddings", None) or _DEFAULT_WINDOW)


def loglikelihoods(
    model: Any,
    pairs: Sequence[TokenPair],
    *,
    max_length: int,
    batch_size: int,
    advance: Callable[[int], None],
) -> list[tuple[float, bool]]:
    """Return `(log-likelihood in nats, is it the greedy continuation)` of each `(context, continuation)`, in order.

    A pair longer than `max_length + 1` loses tokens at the left, as in lm-evaluation-harness.

    Args:
        model: a Hugging Face causal language model in eval mode.
        pairs: token ids; neither part may be empty.
        max_length: tokens that the model can read.
        batch_size: rows per forward pass.
        advance: called with the number of pairs just done.

    Raises:
        DataError: an empty part, or a continuation that alone exceeds `max_length`.
    """
    rows = shared_rows(pairs, max_length=max_length)
    score = _packed_logprobs
    if not can_share_context(model):
        rows = [SharedRow(row.context, (one,)) for row in rows for one in row.continuations]
        score = _plain_logprobs
    rows.sort(key=lambda row: -row.length)
    sums = torch.zeros(len(pairs), dtype=torch.float64)
    greedy = torch.ones(len(pairs), dtype=torch.bool)
    with torch.no_grad():
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            targets = _targets(batch)
            logprobs, is_greedy = score(model, batch, targets)
            sums.index_add_(0, targets.result, logprobs.double().cpu())
            greedy[targets.result[~is_greedy.cpu()]] = False
            advance(sum(len(row.continuations) for row in batch))
    return list(zip(sums.tolist(), greedy.tolist(), strict=True))


def shared_rows(pairs: Sequence[TokenPair], *, max_length: int) -> list[SharedRow]:
    """Group pairs by their context, after cutting from the left what does not fit; rows keep to `MAX_ROW_TOKENS`."""
    groups: dict[tuple[int, ...], list[Continuation]] = {}
    for index, (context, continuation) in enumerate(pairs):
        if not context or not continuation or len(continuation) > max_length:
            raise DataError(
                f"request {index} has {len(context)} context and {len(continuation)} continuation tokens; both must be "
                f"at least 1 and the continuation at most {max_length}. Shorten or remove this item of the benchmark."
            )
        tokens = (*context, *continuation)[-(max_length + 1) :]
        kept = tokens[: len(tokens) - len(continuation)]
        groups.setdefault(kept, []).append(Continuation(index, tuple(continuation)))
    return [row for context, group in groups.items() for row in _rows_within_limit(context, group)]


def _rows_within_limit(context: tuple[int, ...], group: list[Continuation]) -> Iterator[SharedRow]:
    held: list[Continuation] = []
    for one in group:
        grown = SharedRow(context, (*held, one))
        if held and grown.length > MAX_ROW_TOKENS:
            yield SharedRow(context, tuple(held))
            held = []
        held.append(one)
    yield SharedRow(context, tuple(held))


def can_share_context(model: Any) -> bool:
    """Whether packed rows and the bare head give this model's own log-likelihoods; tried on a dozen tokens."""
    vocab = int(model.get_input_embeddings().weight.shape[0])
    ids = [(7 * place + 3) % vocab for place in range(12)]
    parts = (Continuation(0, tuple(ids[5:8])), Continuation(1, tuple(ids[8:12])))
    packed = [SharedRow(tuple(ids[:5]), parts)]
    plain = [SharedRow(tuple(ids[:5]), (one,)) for one in parts]
    try:
        with torch.no_grad():
            got, _ = _packed_logprobs(model, packed, _targets(packed))
            want, _ = _plain_logprobs(model, plain, _targets(plain))
    except (TypeError, ValueError, RuntimeError, AttributeError):
        return False
    half = model.get_input_embeddings().weight.dtype in (torch.float16, torch.bfloat16)
    half = half or torch.is_autocast_enabled(model.device.type)
    tolerance = 0.1 if half else _PROBE_TOLERANCE_NATS
    return bool(torch.allclose(got, want, rtol=0.0, atol=tolerance, equal_nan=True))


def _targets(batch: Sequence[SharedRow]) -> _Targets:
    """Where each continuation token is predicted: the first by the context's last position, the others in its part."""
    found: list[tuple[int, int, int, int]] = []
    for row, shared in enumerate(batch):
        start = len(shared.context)
        for one in shared.continuations:
            columns = [len(shared.context) - 1, *range(start, start + len(one.tokens) - 1)]
            found += [(row, column, token, one.index) for column, token in zip(columns, one.tokens, strict=True)]
            start += len(one.tokens) - 1
    row_, column_, token_, result_ = torch.tensor(found, dtype=torch.long).T.contiguous()
    return _Targets(row_, column_, token_, result_)


def _packed_logprobs(model: Any, batch: Sequence[SharedRow], targets: _Targets) -> tuple[Tensor, Tensor]:
    """Log-probs and greediness of the targets, from packed rows and the head at predicting positions alone."""
    device = model.device
    ids, segments, positions = _packed_inputs(batch)
    decoder = model.get_decoder()
    mask = _attention_mask(segments.to(device), _mask_dtype(model))
    output = decoder(input_ids=ids.to(device), attention_mask=mask, position_ids=positions.to(device), use_cache=False)
    hidden = output.last_hidden_state
    place = targets.row * ids.shape[1] + targets.column
    unique, which = torch.unique(place, return_inverse=True)
    needed = hidden.reshape(-1, hidden.shape[-1])[unique.to(device)]
    return _head_logprobs(model.get_output_embeddings(), needed, which.to(device), targets.token.to(device))


def _head_logprobs(head: Any, hidden: Tensor, which: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Log-prob of `tokens[i]` under the head's distribution at `hidden[which[i]]`; a place may predict many tokens."""
    order = torch.argsort(which, stable=True)
    logprobs = torch.empty(len(tokens), dtype=torch.float32, device=hidden.device)
    greedy = torch.empty(len(tokens), dtype=torch.bool, device=hidden.device)
    sorted_places = which[order].contiguous()
    for block in cache_blocks(len(hidden), head.weight.shape[0]):
        with torch.autocast(hidden.device.type, enabled=False):
            logits = head(hidden[block].to(head.weight.dtype)).float()
        edges = torch.tensor([block.start, block.stop], device=hidden.device)
        first, last = torch.searchsorted(sorted_places, edges).tolist()
        asked = order[first:last]
        local = which[asked] - block.start
        chosen = logits[local, tokens[asked]]
        logprobs[asked] = chosen - logits.logsumexp(dim=-1)[local]
        greedy[asked] = logits.argmax(dim=-1)[local] == tokens[asked]
    return logprobs, greedy


def _plain_logprobs(model: Any, batch: Sequence[SharedRow], targets: _Targets) -> tuple[Tensor, Tensor]:
    """The same by the model's own forward pass; each row holds one continuation."""
    device = model.device
    ids, segments, _ = _packed_inputs(batch)
    mask = (segments != _PADDING).long()
    logits = model(input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False).logits
    rows = logits[targets.row.to(device), targets.column.to(device)].float()
    tokens = targets.token.to(device)
    logprobs = torch.log_softmax(rows, dim=-1).gather(1, tokens[:, None]).squeeze(1)
    return logprobs, rows.argmax(dim=-1) == tokens


def _packed_inputs(batch: Sequence[SharedRow]) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, segments (0 context, 1… continuations, -1 padding) and position ids, `[rows, tokens]`, padded right."""
    width = max(row.length for row in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    segments = torch.full_like(ids, _PADDING)
    positions = torch.zeros_like(ids)
    for number, row in enumerate(batch):
        end = len(row.context)
        ids[number, :end] = torch.tensor(row.context)
        segments[number, :end] = _CONTEXT
        positions[number, :end] = torch.arange(end)
        for segment, one in enumerate(row.continuations, start=1):
            read = len(one.tokens) - 1
            part = slice(end, end + read)
            ids[number, part] = torch.tensor(one.tokens[:read], dtype=torch.long)
            segments[number, part] = segment
            positions[number, part] = torch.arange(len(row.context), len(row.context) + read)
            end += read
    return ids, segments, positions


def _mask_dtype(model: Any) -> torch.dtype:
    return autocast_dtype(model.device.type) or model.dtype


def _attention_mask(segments: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive mask `[rows, 1, tokens, tokens]`: a token sees, before itself, the context and its own segment."""
    width = segments.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool, device=segments.device).tril()
    asking, asked = segments[:, :, None], segments[:, None, :]
    allowed = causal & ((asked == _CONTEXT) | ((asked == asking) & (asked != _PADDING)))
    mask = torch.zeros(allowed.shape, dtype=dtype, device=segments.device)
    return mask.masked_fill_(~allowed, torch.finfo(dtype).min)[:, None]
