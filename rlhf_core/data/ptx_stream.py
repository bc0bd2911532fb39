"""General text for PPO-ptx (P3) and perplexity (E2), as token lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from rlhf_core.config.run import RunConfig
from rlhf_core.data.drawing import draw_indices
from rlhf_core.data.hub import is_hub
from rlhf_core.data.sources import load_rows
from rlhf_core.errors import ConfigError, DataError
from rlhf_core.seeding import derive_seed

PTX_SCHEMA = pa.schema(
    [("document", pa.int32()), ("part", pa.int32()), ("is_held_out", pa.bool_()), ("token_ids", pa.list_(pa.int32()))]
)
"""A part is at most `ppo.ptx.max_tokens` of one document; all parts of a document are on the same side."""

MIN_PART_TOKENS = 2
"""Fewer tokens predict nothing."""


def documents(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> pd.DataFrame:
    """All texts of `data.ptx` as `PTX_SCHEMA`: cut into parts, the first `ptx_held_out_documents` held out.

    Texts that are equal up to case and spacing are taken once, so that no held-out text is trained on.

    Raises:
        DataError: a source is malformed, or there are too few documents to hold some out.
        ConfigError: a hub source without a limit, which may have no end.
    """
    rows = [
        {"document": number, "part": part, "is_held_out": number < config.data.ptx_held_out_documents, "token_ids": ids}
        for number, text in enumerate(_texts(config))
        for part, ids in enumerate(_parts(tokenizer, text, config.ppo.ptx.max_tokens))
    ]
    frame = pd.DataFrame(rows, columns=PTX_SCHEMA.names)
    if config.data.ptx and len(set(frame["is_held_out"])) < 2:
        raise DataError(
            f"data.ptx has {frame['document'].nunique()} usable documents; data.ptx_held_out_documents="
            f"{config.data.ptx_held_out_documents} of them would be held out and none left to train on. "
            "Give more documents (look at the source's `separator`), or set data.ptx_held_out_documents lower."
        )
    return frame


def draw_documents(docs: Sequence[Sequence[int]], *, count: int, iteration: int, seed: int) -> list[list[int]]:
    """`count` token lists for one iteration; the same for the same arguments. Each is used once before any comes again.

    Args:
        docs: training parts, in a fixed order.
        iteration: counts from 1.

    Raises:
        DataError: there are no documents.
    """
    if not docs:
        raise DataError("no general text to draw from: data.ptx gave no training documents.")
    chosen = draw_indices(len(docs), np.full(iteration, count, dtype=np.int64), derive_seed(seed, "ptx"))
    return [list(docs[index]) for index in chosen]


def _texts(config: RunConfig) -> Iterator[str]:
    seen: set[int] = set()
    for source in config.data.ptx:
        if is_hub(source) and source.limit is None:
            raise ConfigError(f"data.ptx {source.path!r}: a hub text set may have no end. Set its `limit` (documents).")
        for text in load_rows(source, config.data.root, required=["text"])["text"]:
            key = hash(" ".join(text.split()).casefold())
            if text.strip() and key not in seen:
                seen.add(key)
                yield text


def _parts(tokenizer: PreTrainedTokenizerBase, text: str, max_tokens: int) -> list[list[int]]:
    """The document's tokens (with the tokenizer's own BOS) in consecutive parts; a part of one token is dropped."""
    ids: list[int] = tokenizer(text, verbose=False)["input_ids"]
    parts = [list(ids[start : start + max_tokens]) for start in range(0, len(ids), max_tokens)]
    return [part for part in parts if len(part) >= MIN_PART_TOKENS]
