"""Preflight of the data: read every source once, check it, and keep what later stages use in the run folder."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from rlhf_core.config.run import RunConfig
from rlhf_core.data import prepared
from rlhf_core.data.data_docs import write_data_docs
from rlhf_core.data.events import record_event
from rlhf_core.data.expectations import TableCheck, check_pairs, check_prompts, split_rows
from rlhf_core.data.preferences import PAIR_SCHEMA, load_preferences
from rlhf_core.data.prompt_pool import (
    PromptPool,
    build_prompt_pool,
    domain_shares,
    without_prompts,
)
from rlhf_core.data.ptx_stream import PTX_SCHEMA, documents
from rlhf_core.data.records import PROMPT_SCHEMA
from rlhf_core.data.refs import StageRef
from rlhf_core.data.sources import source_fingerprint
from rlhf_core.data.store import (
    RunFolder,
    StageKey,
    finish_stage,
    finished_stage,
    stage_folder,
    write_bytes,
    write_table,
)
from rlhf_core.errors import DataError
from rlhf_core.seeding import derive_seed

if TYPE_CHECKING:
    from rlhf_core.runtime import Runtime

HELD_OUT_SHARE = 0.2
"""At most this share of the prompts is held out where no held-out source is given."""


def run_stage(runtime: Runtime) -> StageRef:
    """Read, check and store prompts, preference pairs and general text under `prompts/` of the run folder.

    Raises:
        DataError: a source is missing, empty or malformed, or nothing usable is left of it.
        ValidationFailed: an expectation fails and the policy is to stop.
        ConfigError: no chat template; domain weights that fit no prompt.
    """
    config, folder = runtime.config, runtime.folder
    key = _stage_key(config)
    if stored := finished_stage(folder.prompts, key):
        return stored
    pool, held_out = _prompts(runtime)
    pairs = load_preferences(config.data)
    ptx = documents(config, runtime.tokenizer)
    tables = {
        prepared.POOL: pool.prompts,
        prepared.HELD_OUT: held_out.prompts,
        prepared.PAIRS_TRAIN: pairs.train,
        prepared.PAIRS_HELD_OUT: pairs.held_out,
    }
    kept, quarantined = _validated(folder, config, tables)
    left_out = pd.concat([pool.left_out, held_out.left_out, pairs.left_out, quarantined], ignore_index=True)
    metrics = _metrics(kept, ptx, left_out)
    with stage_folder(folder.prompts) as partial:
        for name, frame in kept.items():
            write_table(partial / name, frame, PROMPT_SCHEMA if "prompt_ids" in frame.columns else PAIR_SCHEMA)
        write_table(partial / prepared.PTX, ptx, PTX_SCHEMA)
        lines = "".join(json.dumps(row) + "\n" for row in left_out.to_dict("records"))
        write_bytes(partial / prepared.LEFT_OUT, lines.encode())
        finish_stage(partial, key, rows=len(kept[prepared.POOL]), metrics=metrics)
    _report_left_out(folder, left_out)
    _report_small_groups(folder, config, kept[prepared.POOL])
    return finished_stage(folder.prompts, key) or _vanished(folder.prompts)


def _stage_key(config: RunConfig) -> StageKey:
    data = config.data
    groups = {
        "prompts": data.prompts,
        "held_out_prompts": data.held_out_prompts,
        "preferences": data.preferences.train,
        "held_out_preferences": data.preferences.held_out,
        "sft": data.sft if data.general_fraction else (),
        "ptx": data.ptx,
    }
    return StageKey(
        stage="prepare",
        inputs={
            f"{name}/{number}": source_fingerprint(source, data.root)
            for name, sources in groups.items()
            for number, source in enumerate(sources)
        },
        settings={
            "data": data.model_dump(mode="json", exclude={"root"}),
            "rollout": [config.rollout.max_prompt_tokens, config.rollout.most_prompts],
            "ptx_max_tokens": config.ppo.ptx.max_tokens,
            "held_out_rollouts": config.evaluation.held_out_rollouts,
            "validation": config.validation.model_dump(mode="json"),
            "policy": [config.model.policy, config.model.revision],
            "seed": config.seed,
        },
    )


def _prompts(runtime: Runtime) -> tuple[PromptPool, PromptPool]:
    """`(pool, held out)`, which share no prompt; general SFT prompts are part of the pool."""
    config, tokenizer, data = runtime.config, runtime.tokenizer, runtime.config.data
    pool = build_prompt_pool(config, tokenizer, data.prompts)
    if data.held_out_prompts:
        held_out = build_prompt_pool(config, tokenizer, data.held_out_prompts)
    else:
        pool, held_out = _hold_out(config, pool)
        record_event(
            runtime.folder,
            "held_out_prompts",
            f"data.held_out_prompts is not given: {len(held_out.prompts)} prompts were taken out of data.prompts.",
            prompts=len(held_out.prompts),
        )
    if data.general_fraction:
        general = build_prompt_pool(config, tokenizer, data.sft, is_general=True)
        general = without_prompts(general, pool.prompts, "duplicate")
        pool = PromptPool(
            pd.concat([pool.prompts, general.prompts], ignore_index=True),
            pd.concat([pool.left_out, general.left_out], ignore_index=True),
        )
    pool = without_prompts(pool, held_out.prompts, "held_out")
    for name, side in (("data.prompts", pool), ("data.held_out_prompts", held_out)):
        if side.prompts.empty:
            reasons = side.left_out["reason"].value_counts().to_dict()
            raise DataError(
                f"{name}: no usable prompt is left; left out by reason: {reasons or 'none'}. "
                f"If they are too long, raise rollout.max_prompt_tokens (now {config.rollout.max_prompt_tokens})."
            )
    return pool, held_out


def _hold_out(config: RunConfig, pool: PromptPool) -> tuple[PromptPool, PromptPool]:
    """Take prompts for the held-out set out of the pool: those with the smallest seeded hash."""
    count = min(config.evaluation.held_out_rollouts, math.ceil(HELD_OUT_SHARE * len(pool.prompts)))
    rank = pool.prompts["prompt_id"].map(lambda name: derive_seed(config.seed, "held_out", name)).rank(method="first")
    is_taken = (rank <= count).to_numpy(dtype=bool)
    held_out = PromptPool(pool.prompts.loc[is_taken].reset_index(drop=True), pool.left_out.iloc[:0])
    return PromptPool(pool.prompts.loc[~is_taken].reset_index(drop=True), pool.left_out), held_out


def _validated(
    folder: RunFolder, config: RunConfig, tables: Mapping[str, pd.DataFrame]
) -> tuple[dict[str, pd.DataFrame], pd.DataFrame]:
    """The tables without rows that fail an expectation, and those rows; Data Docs are written first."""
    checks: dict[str, TableCheck] = {}
    for name, frame in tables.items():
        if frame.empty:
            continue
        suite = Path(name).stem
        is_prompts = "prompt_ids" in frame.columns
        checks[name] = check_prompts(suite, frame, config.rollout) if is_prompts else check_pairs(suite, frame)
    write_data_docs(folder.validation, "sources", "Prompts and preference pairs", list(checks.values()))
    kept: dict[str, pd.DataFrame] = {}
    quarantined = [pd.DataFrame(columns=["origin", "reason", "detail", "text"])]
    for name, frame in tables.items():
        if name not in checks:
            kept[name] = frame
            continue
        kept[name], bad = split_rows(checks[name], frame, config.validation, name)
        facts = {"reason": "quarantined", "detail": bad["quarantine_reasons"], "text": bad["prompt"]}
        quarantined.append(pd.DataFrame({"origin": name, **facts}))
    return kept, pd.concat(quarantined, ignore_index=True)


def _metrics(kept: Mapping[str, pd.DataFrame], ptx: pd.DataFrame, left_out: pd.DataFrame) -> dict[str, float]:
    counts = {f"data/left_out_{reason}": float(count) for reason, count in Counter(left_out["reason"]).items()}
    return {
        "data/prompts": float(len(kept[prepared.POOL])),
        "data/general_prompts": float(sum(kept[prepared.POOL]["is_general"])),
        "data/held_out_prompts": float(len(kept[prepared.HELD_OUT])),
        "data/preference_pairs_train": float(len(kept[prepared.PAIRS_TRAIN])),
        "data/preference_pairs_held_out": float(len(kept[prepared.PAIRS_HELD_OUT])),
        "data/ptx_parts": float(len(ptx)),
        "data/ptx_tokens": float(sum(len(ids) for ids in ptx["token_ids"])),
        **counts,
    }


def _report_left_out(folder: RunFolder, left_out: pd.DataFrame) -> None:
    if left_out.empty:
        return
    counts = dict(Counter(left_out["reason"].tolist()))
    words = ", ".join(f"{count} {reason}" for reason, count in counts.items())
    message = f"{len(left_out)} rows of the data are not used: {words}. See prompts/left_out.jsonl."
    record_event(folder, "left_out", message, **counts)


def _report_small_groups(folder: RunFolder, config: RunConfig, pool: pd.DataFrame) -> None:
    """Say once which domains are smaller than what an iteration takes from them, so that their prompts repeat."""
    sizes = Counter(pool.loc[~pool["is_general"].to_numpy(dtype=bool), "domain"].tolist())
    shares = domain_shares(list(sizes), config.data.domain_weights)
    count = (1 - config.data.general_fraction) * config.rollout.most_prompts
    wanted = {name: math.ceil(share * count) for name, share in shares.items()}
    small = {name: f"{sizes[name]} of {need}" for name, need in wanted.items() if sizes[name] < need}
    if small:
        record_event(
            folder,
            "small_prompt_pool",
            f"some domains have fewer prompts than one iteration takes, so prompts repeat within it: {small}. "
            "Add prompts, lower rollout.prompts_per_iteration, or lower those domains' weights.",
            domains=small,
        )


def _vanished(folder: Path) -> StageRef:
    raise DataError(f"{folder} was written but cannot be read back. Is another process changing the run folder?")
