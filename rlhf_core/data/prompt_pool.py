"""The prompts that a run rolls out (G5): read, checked, and drawn by domain."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerBase

from rlhf_core.config.data import SourceConfig
from rlhf_core.config.run import RunConfig
from rlhf_core.data.chat import encode_prompt
from rlhf_core.data.drawing import draw_indices, share_counts
from rlhf_core.data.records import PROMPT_SCHEMA
from rlhf_core.data.sources import load_rows
from rlhf_core.data.transcripts import dialogue_prompt, prompt_messages
from rlhf_core.errors import ConfigError, DataError
from rlhf_core.seeding import derive_seed

POOL_COLUMNS = [*PROMPT_SCHEMA.names, "is_general"]
LEFT_OUT_COLUMNS = ["origin", "reason", "detail", "text"]
GENERAL = "general"


@dataclass(frozen=True)
class PromptPool:
    """Prompts that can be used, and those left out with the reason."""

    prompts: pd.DataFrame
    """`PROMPT_SCHEMA` and `is_general` (True: from the SFT data, for `general_fraction`)."""
    left_out: pd.DataFrame
    """`origin` (file and line), `reason` (malformed, empty, duplicate, too_long, held_out), `detail`, `text`."""


def build_prompt_pool(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase, sources: Sequence[SourceConfig], *, is_general: bool = False
) -> PromptPool:
    """Read the sources' column `prompt`, apply the chat template, and leave out what cannot be used.

    A prompt over `rollout.max_prompt_tokens` is left out and reported, never cut (E04). Of prompts that differ only in
    case and spacing the first is kept.

    Raises:
        DataError: a source is malformed.
        ConfigError: the tokenizer cannot format a chat.
    """
    kept: list[dict[str, Any]] = []
    left_out: list[dict[str, Any]] = []
    seen: set[str] = set()
    limit = config.rollout.max_prompt_tokens
    for source in sources:
        for row in load_rows(source, config.data.root, required=["prompt"]).to_dict("records"):
            try:
                prompt = dialogue_prompt(row["prompt"]) if source.layout == "hh_transcript" else row["prompt"].strip()
            except DataError as error:
                left_out.append(_left_out(row, "malformed", str(error)))
                continue
            key = prompt_key(prompt)
            if not key or key in seen:
                left_out.append(_left_out(row, "duplicate" if key else "empty", ""))
                continue
            seen.add(key)
            ids = encode_prompt(tokenizer, prompt_messages(prompt), config.data.system_prompt)
            if len(ids) > limit:
                left_out.append(_left_out(row, "too_long", f"{len(ids)} tokens; rollout.max_prompt_tokens={limit}"))
                continue
            record = {"prompt_id": prompt_id(prompt), "domain": row["domain"], "prompt": prompt, "prompt_ids": ids}
            kept.append({**record, "is_general": is_general})
    return PromptPool(pd.DataFrame(kept, columns=POOL_COLUMNS), pd.DataFrame(left_out, columns=LEFT_OUT_COLUMNS))


def prompt_key(prompt: str) -> str:
    """Equal for prompts that differ only in case and spacing."""
    return " ".join(prompt.split()).casefold()


def prompt_id(prompt: str) -> str:
    """The prompt's name in all tables; follows from its text alone."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


def without_prompts(pool: PromptPool, others: pd.DataFrame, reason: str) -> PromptPool:
    """The pool without prompts that `others` has too; they go to `left_out` for that reason."""
    keys = {prompt_key(prompt) for prompt in others["prompt"]}
    texts = pool.prompts["prompt"].tolist()
    is_shared = np.array([prompt_key(text) in keys for text in texts], dtype=bool)
    found = [{"origin": "prompt pool", "prompt": text} for text, shared in zip(texts, is_shared, strict=True) if shared]
    shared = pd.DataFrame([_left_out(row, reason, "") for row in found], columns=LEFT_OUT_COLUMNS)
    prompts = pool.prompts.loc[~is_shared].reset_index(drop=True)
    return PromptPool(prompts, pd.concat([pool.left_out, shared], ignore_index=True))


def domain_shares(domains: Sequence[str], domain_weights: Mapping[str, float]) -> dict[str, float]:
    """Each domain's share of the prompts drawn: its weight (1 where none is given) over the sum of weights.

    Raises:
        ConfigError: a weight is negative, not finite or of an unknown domain, or all are 0.
    """
    names = sorted(set(domains))
    unknown = sorted(set(domain_weights) - set(names))
    if unknown:
        raise ConfigError(f"data.domain_weights names {unknown}, which no prompt has. The prompts' domains: {names}.")
    weights = {name: float(domain_weights.get(name, 1.0)) for name in names}
    wrong = {name: weight for name, weight in weights.items() if weight < 0 or not math.isfinite(weight)}
    total = sum(weights.values())
    if wrong or total <= 0:
        raise ConfigError(f"data.domain_weights must be finite, not negative, and not all 0; they are {weights}.")
    return {name: weight / total for name, weight in weights.items()}


def draw_prompts(
    pool: pd.DataFrame,
    *,
    count: int,
    iteration: int,
    seed: int,
    domain_weights: Mapping[str, float],
    general_fraction: float,
) -> pd.DataFrame:
    """The prompts of one iteration; the same for the same arguments, whatever was drawn before.

    Each group (a domain, or the general SFT prompts) gives its share and is gone through once before any of its prompts
    comes again. A prompt is twice in one draw only if its group is smaller than its share; the column `repeat` then
    counts 0, 1, …

    Args:
        pool: `PROMPT_SCHEMA` and `is_general`.
        iteration: counts from 1.
        general_fraction: share of prompts with `is_general`; ignored where the pool has none.

    Raises:
        DataError: the pool is empty.
        ConfigError: see `domain_shares`.
    """
    groups = _groups(pool, domain_weights, general_fraction)
    counts = share_counts([share for _, share, _ in groups], count, iteration, seed)
    rows: list[int] = []
    for column, (name, _, members) in enumerate(groups):
        rows.extend(members[index] for index in draw_indices(len(members), counts[:, column], derive_seed(seed, name)))
    drawn = pool.iloc[rows].reset_index(drop=True)
    return drawn.assign(repeat=drawn.groupby("prompt_id").cumcount().astype("int32"))


def _groups(
    pool: pd.DataFrame, domain_weights: Mapping[str, float], general_fraction: float
) -> list[tuple[str, float, list[int]]]:
    """Name, share and row numbers of each group that takes part."""
    if pool.empty:
        raise DataError("the prompt pool is empty: no prompt can be drawn. Give data.prompts with usable prompts.")
    is_general = pool["is_general"].to_numpy(dtype=bool)
    general = np.flatnonzero(is_general).tolist()
    fraction = general_fraction if general else 0.0
    domains = pool["domain"].to_numpy(dtype=object)
    groups = [(GENERAL + "/sft", fraction, general)] if fraction else []
    for name, share in domain_shares(domains[~is_general].tolist(), domain_weights).items():
        if share:
            members = np.flatnonzero(~is_general & (domains == name)).tolist()
            groups.append((f"domain/{name}", share * (1 - fraction), members))
    return groups


def _left_out(row: Mapping[str, Any], reason: str, detail: str) -> dict[str, Any]:
    return {"origin": row["origin"], "reason": reason, "detail": detail, "text": row["prompt"][:500]}
