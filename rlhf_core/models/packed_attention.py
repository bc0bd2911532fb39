"""Causal attention over several sequences that lie in one row without padding (P12).

The linear layers see every token of the row at once, and attention runs on each sequence alone. A block-diagonal mask
over the whole row would cost the square of the row: at 8 × 110 tokens it made attention eight times slower on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from rlhf_core.errors import ConfigError
from rlhf_core.models import bfloat16_attention

_NAME = "packed_sdpa"


def use_packed_attention(model: PreTrainedModel) -> None:
    """Let the functions below work on this model; other calls keep Hugging Face's SDPA.

    Raises:
        ConfigError: the architecture does not take another attention function.
    """
    if not getattr(model, "_supports_attention_backend", False):
        raise ConfigError(
            f"{type(model).__name__} does not support exchangeable attention, which training without padding needs. "
            "Use a decoder-only architecture that transformers has moved to its attention interface (Llama, Qwen, …)."
        )
    AttentionInterface.register(_NAME, _packed_sdpa)
    AttentionMaskInterface.register(_NAME, sdpa_mask)
    model.set_attn_implementation(_NAME)


def _require_prepared(model: Any) -> None:
    """Refuse a model whose attention would let the sequences see each other, and say nothing."""
    found = model.config._attn_implementation
    if found != _NAME:
        raise ConfigError(
            f"{type(model).__name__} has attention {found!r}, which does not keep sequences without padding apart: its "
            "probabilities would be wrong. Load it with load_policy, or call use_packed_attention(model) first."
        )


def body_hidden(
    body: Any, ids: Int[Tensor, " tokens"], positions: Int[Tensor, " tokens"], lengths: Sequence[int]
) -> Float[Tensor, "tokens hidden"]:
    """Return the last hidden states of sequences that lie one after another; no token sees another sequence.

    Args:
        body: the model without its head, prepared by `use_packed_attention`.
        ids: all tokens.
        positions: of each token in its own sequence, from 0.
        lengths: of the sequences; they sum to the number of tokens.
    """
    _require_prepared(body)
    # A mask with four dimensions is taken as ready-made and passed on, so that no tokens × tokens mask is built.
    ready_made = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=ids.device)
    output = body(
        input_ids=ids[None],
        position_ids=positions[None],
        attention_mask=ready_made,
        segment_lengths=tuple(lengths),
        use_cache=False,
    )
    return cast(Tensor, output.last_hidden_state)[0]


def prompt_logits(
    model: Any,
    ids: Int[Tensor, " tokens"],
    positions: Int[Tensor, " tokens"],
    lengths: Sequence[int],
    cache: Any,
) -> Float[Tensor, "prompts vocab"]:
    """Read prompts that lie one after another into the cache; return the logits that follow each.

    Args:
        model: a causal language model prepared by `use_packed_attention`.
        ids: all prompts' tokens.
        positions: of each token in its own prompt, from 0.
        lengths: of the prompts; they sum to the number of tokens.
        cache: takes the keys and values `[1, heads, tokens, size]`.
    """
    _require_prepared(model)
    output = model(
        input_ids=ids[None],
        position_ids=positions[None],
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=ids.device),
        segment_lengths=tuple(lengths),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=torch.tensor(lengths, device=ids.device).cumsum(0) - 1,
    )
    return cast(Tensor, output.logits)[0]


def next_logits(
    model: Any,
    tokens: Int[Tensor, " rows"],
    positions: Int[Tensor, " rows"],
    is_attended: Bool[Tensor, "rows places"],
    cache: Any,
) -> Float[Tensor, "rows vocab"]:
    """Read one more token of each row; return the logits that follow it.

    Args:
        model: a causal language model prepared by `use_packed_attention`.
        tokens: one of each row.
        positions: of the tokens in their rows, from 0.
        is_attended: which places of the cache a row sees, its new token's included.
        cache: gives the keys and values `[rows, heads, places, size]`.
    """
    _require_prepared(model)
    output = model(
        input_ids=tokens[:, None],
        position_ids=positions[:, None],
        attention_mask=is_attended[:, None, None],
        one_token_rows=True,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return cast(Tensor, output.logits)[:, -1]


def _packed_sdpa(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attention function of transformers' interface; `[1, heads, tokens, size]` in, `[1, tokens, heads, size]` out."""
    lengths = cast("tuple[int, ...] | None", options.pop("segment_lengths", None))
    is_one_token = bool(options.pop("one_token_rows", False))
    if lengths is None and not is_one_token:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    longest = key.shape[2] if lengths is None else max(lengths)
    window = options.get("sliding_window")
    if options.get("softcap") is not None or (window is not None and longest > window):
        raise ConfigError(
            f"{type(module).__name__} uses soft-capped logits or a window of {window} tokens, shorter than a sequence "
            f"of {longest}; work without padding supports neither. Use another model or shorter sequences."
        )
    if lengths is None:
        return _one_token_sdpa(query, key, value, attention_mask, cast("float | None", options.get("scaling"))), None
    return _each_sequence(query, key, value, lengths, cast("float | None", options.get("scaling"))), None


def _each_sequence(
    query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], scale: float | None
) -> Float[Tensor, "1 tokens heads size"]:
    """Attention on each sequence alone; which way it is computed depends on its own length, not on its neighbours'."""
    runs = [(fast, tuple(run)) for fast, run in groupby(lengths, partial(bfloat16_attention.is_faster, query))]
    sizes = [sum(run) for _, run in runs]
    attended: list[Tensor] = []
    pieces = zip(runs, query.split(sizes, dim=2), key.split(sizes, dim=2), value.split(sizes, dim=2), strict=True)
    for (is_faster, run), q, k, v in pieces:
        attend = bfloat16_attention.attention if is_faster else _fused
        attended.append(attend(q, k, v, run, scale))
    return torch.cat(attended, dim=1)


def _fused(query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], scale: float | None) -> Tensor:
    """PyTorch's own kernel, sequence by sequence."""
    grouped, states = query.shape[1] != key.shape[1], (query, key, value)
    attended = [
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
        for q, k, v in zip(*(tensor.split(list(lengths), dim=2) for tensor in states), strict=True)
    ]
    return torch.cat(attended, dim=2).transpose(1, 2)


def _one_token_sdpa(
    query: Float[Tensor, "rows heads 1 size"],
    key: Float[Tensor, "rows groups places size"],
    value: Float[Tensor, "rows groups places size"],
    mask: Tensor | None,
    scale: float | None,
) -> Float[Tensor, "rows 1 heads size"]:
    """Query heads that share keys are attended to as if they were several tokens; keys are read once, not repeated."""
    rows, heads, _, size = query.shape
    grouped = query.reshape(rows, key.shape[1], heads // key.shape[1], size)
    attended = torch.nn.functional.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scale)
    return attended.reshape(rows, 1, heads, value.shape[3])
