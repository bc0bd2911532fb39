"""Safe replies in place of rejected responses. They were not sampled from the policy, so they never enter the ratio:
they go to the replay buffer and, with the response that they replace, to a preference set (G3)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from transformers import PreTrainedTokenizerBase

from rlhf_core.data.records import REPLACED_SCHEMA
from rlhf_core.seeding import derive_seed


class Replies:
    """Picks a reply for a rejected response: the prompt's own where there is one, else one of the list, by its seed."""

    def __init__(
        self,
        replies: Sequence[str],
        by_prompt: Mapping[str, str],
        tokenizer: PreTrainedTokenizerBase,
        run_seed: int,
    ) -> None:
        self._replies, self._by_prompt = tuple(replies), by_prompt
        self._tokenizer, self._run_seed = tokenizer, run_seed

    def replacement(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row of `REPLACED_SCHEMA` for a rejected response."""
        reply = self._reply(row)
        return {
            **{name: row[name] for name in ("iteration", "prompt_id", "sample_index", "domain", "prompt")},
            "chosen": reply,
            "rejected": row["response"],
            "rejected_by": row["rejected_by"],
            "token_ids": [*row["prompt_ids"], *self._token_ids(reply)],
        }

    def _reply(self, row: Mapping[str, Any]) -> str:
        if row["prompt"] in self._by_prompt:
            return self._by_prompt[row["prompt"]]
        names = (str(row["prompt_id"]), int(row["iteration"]), int(row["sample_index"]))
        return self._replies[derive_seed(self._run_seed, "reply", *names) % len(self._replies)]

    def _token_ids(self, reply: str) -> list[int]:
        ids: Any = self._tokenizer(reply, add_special_tokens=False, verbose=False)["input_ids"]
        eos: Any = self._tokenizer.eos_token_id
        return [*ids, *([] if eos is None else [eos])]


def replaced_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows with the columns of `REPLACED_SCHEMA`, also where there are none."""
    return pd.DataFrame(list(rows), columns=REPLACED_SCHEMA.names, dtype=object if not rows else None)


def preference_rows(replaced: pd.DataFrame) -> list[dict[str, str]]:
    """Pairs as the reward model's training reads them: the safe reply chosen, the rejected response its twin.

    A pair without a text on one side, or with the same on both, says nothing and is left out.
    """
    rows: list[dict[str, str]] = []
    for row in replaced.to_dict("records"):
        texts = {name: str(row[name]).strip() for name in ("prompt", "chosen", "rejected")}
        if all(texts.values()) and texts["chosen"] != texts["rejected"]:
            pair_id = hashlib.sha256("\0".join(texts.values()).encode()).hexdigest()[:16]
            origin = f"iteration {row['iteration']}, {row['prompt_id']}, sample {row['sample_index']}"
            rows.append({"pair_id": pair_id, "domain": str(row["domain"]), **texts, "origin": origin})
    return rows
