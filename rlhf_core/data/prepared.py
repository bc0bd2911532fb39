"""What `prepare.run_stage` wrote, for the stages that come after it."""

from __future__ import annotations

import pandas as pd

from rlhf_core.data.store import RunFolder, read_table

POOL = "pool.parquet"
HELD_OUT = "held_out.parquet"
LEFT_OUT = "left_out.jsonl"
PAIRS_TRAIN = "preferences_train.parquet"
PAIRS_HELD_OUT = "preferences_held_out.parquet"
PTX = "ptx.parquet"


def prompt_pool(folder: RunFolder) -> pd.DataFrame:
    """Prompts to roll out: `PROMPT_SCHEMA` and `is_general`; input of `draw_prompts`."""
    return read_table(folder.prompts / POOL)


def held_out_prompts(folder: RunFolder) -> pd.DataFrame:
    """Prompts on which the reward is judged, never rolled out: `PROMPT_SCHEMA`."""
    return read_table(folder.prompts / HELD_OUT)


def preference_pairs(folder: RunFolder) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`(train, held_out)`: `PAIR_SCHEMA`; both empty where the run has no preference data."""
    return read_table(folder.prompts / PAIRS_TRAIN), read_table(folder.prompts / PAIRS_HELD_OUT)


def ptx_documents(folder: RunFolder, *, held_out: bool = False) -> list[list[int]]:
    """Token lists of general text: those to train on, or those for perplexity. Empty where the run has none."""
    frame = read_table(folder.prompts / PTX)
    return frame.loc[frame["is_held_out"].astype(bool) == held_out, "token_ids"].tolist()
