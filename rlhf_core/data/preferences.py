"""Preference pairs for the reward model (W1): read, cleaned, and divided so that no dialogue is on both sides."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from rlhf_core.config.data import DataConfig, SourceConfig
from rlhf_core.data.sources import load_rows
from rlhf_core.data.transcripts import opening, split_dialogue
from rlhf_core.errors import DataError

_PAIR_COLUMNS = ("pair_id", "domain", "prompt", "chosen", "rejected", "origin")
PAIR_SCHEMA = pa.schema([(name, pa.string()) for name in _PAIR_COLUMNS])


@dataclass(frozen=True)
class PreferencePairs:
    """Pairs by side, with `pair_id, domain, prompt, chosen, rejected, origin`; and what was left out."""

    train: pd.DataFrame
    held_out: pd.DataFrame
    left_out: pd.DataFrame
    """`origin`, `reason` (malformed, empty, identical, duplicate, held_out), `detail`, `text`."""


def load_preferences(config: DataConfig) -> PreferencePairs:
    """Read all pairs; identical, repeated and malformed ones are left out.

    Where no held-out source is given, `held_out_fraction` of the dialogues (by the hash of their first turn) is held
    out. A training pair whose first turn stands in the held-out set as well is left out of training.

    Raises:
        DataError: a source is malformed, or a side has no pairs.
    """
    preferences = config.preferences
    if not preferences.train:
        empty = pd.DataFrame(columns=PAIR_SCHEMA.names)
        return PreferencePairs(empty, empty.copy(), pd.DataFrame(columns=["origin", "reason", "detail", "text"]))
    left_out: list[dict[str, Any]] = []
    train = _read_pairs(preferences.train, config.root, left_out)
    if preferences.held_out:
        held_out = _read_pairs(preferences.held_out, config.root, left_out)
    else:
        is_held_out = np.array(
            [_unit_hash(opening(text)) < preferences.held_out_fraction for text in train["prompt"]], dtype=bool
        )
        held_out, train = train.loc[is_held_out], train.loc[~is_held_out]
    judged = {opening(text) for text in held_out["prompt"]}
    is_leak = np.array([opening(text) in judged for text in train["prompt"]], dtype=bool)
    for origin, prompt in train.loc[is_leak, ["origin", "prompt"]].itertuples(index=False):
        left_out.append(_left_out(origin, "held_out", "its first turn is in the held-out pairs", prompt))
    train = train.loc[~is_leak]
    for name, side in (("data.preferences.train", train), ("the held-out preference pairs", held_out)):
        if side.empty:
            raise DataError(
                f"{name}: no usable pair is left ({_summary(left_out)}). Give more pairs, or a held-out source apart "
                "from the training data (data.preferences.held_out)."
            )
    report = pd.DataFrame(left_out, columns=["origin", "reason", "detail", "text"])
    return PreferencePairs(train.reset_index(drop=True), held_out.reset_index(drop=True), report)


def _read_pairs(sources: Sequence[SourceConfig], root: Path, left_out: list[dict[str, Any]]) -> pd.DataFrame:
    """Usable pairs of the sources; the others are appended to `left_out`."""
    pairs: list[dict[str, Any]] = []
    seen: set[str] = set()
    for source in sources:
        is_transcript = source.layout == "hh_transcript"
        required = ["chosen", "rejected"] if is_transcript else ["prompt", "chosen", "rejected"]
        for row in load_rows(source, root, required=required).to_dict("records"):
            origin = row["origin"]
            try:
                prompt, chosen, rejected = _cut(row) if is_transcript else tuple(row[name].strip() for name in required)
            except DataError as error:
                left_out.append(_left_out(origin, "malformed", str(error), row["chosen"]))
                continue
            pair_id = hashlib.sha256("\0".join((prompt, chosen, rejected)).encode()).hexdigest()[:16]
            reason = _refusal(prompt, chosen, rejected) or ("duplicate" if pair_id in seen else None)
            if reason:
                left_out.append(_left_out(origin, reason, "", prompt))
                continue
            seen.add(pair_id)
            record = {"pair_id": pair_id, "domain": row["domain"], "prompt": prompt, "chosen": chosen}
            pairs.append({**record, "rejected": rejected, "origin": origin})
    return pd.DataFrame(pairs, columns=PAIR_SCHEMA.names, dtype=object)


def _cut(row: dict[str, str]) -> tuple[str, str, str]:
    """Prompt, chosen and rejected response of two dialogues that differ in the last turn."""
    prompt, chosen = split_dialogue(row["chosen"])
    other, rejected = split_dialogue(row["rejected"])
    if prompt != other:
        raise DataError("chosen and rejected differ before the last turn")
    return prompt, chosen, rejected


def _refusal(prompt: str, chosen: str, rejected: str) -> str | None:
    if not (prompt and chosen and rejected):
        return "empty"
    return "identical" if chosen == rejected else None


def _unit_hash(text: str) -> float:
    """A number in [0, 1) that follows from the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def _left_out(origin: str, reason: str, detail: str, text: str) -> dict[str, Any]:
    return {"origin": origin, "reason": reason, "detail": detail, "text": text[:500]}


def _summary(left_out: list[dict[str, Any]]) -> str:
    counts = pd.Series([row["reason"] for row in left_out], dtype=object).value_counts()
    return ", ".join(f"{count} {reason}" for reason, count in counts.items()) or "none was left out"
