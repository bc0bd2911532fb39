"""Where texts come from (D1)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from rlhf_core.config.base import StrictConfig

Format = Literal["auto", "jsonl", "json", "csv", "parquet", "text"]


class SourceConfig(StrictConfig):
    """One source of rows: a local file or folder (relative to `data.root`), or `hub:NAME`, a Hugging Face data set."""

    path: str = Field(min_length=1, description="file, folder, or hub:owner/name")
    format: Format = Field("auto", description="auto goes by the file's ending")
    columns: dict[str, str] = Field(
        default_factory=dict[str, str],
        description="our column name → theirs, or a template such as '{instruction} {input}'",
    )
    subset: str | None = Field(None, description="hub configuration name")
    data_dir: str | None = Field(None, description="folder inside the hub repository")
    split: str = Field("train", description="hub split")
    limit: int | None = Field(None, ge=1, description="rows taken, from the start")
    domain: str | None = Field(
        None, description="domain of every row; otherwise the `domain` column, otherwise 'general'"
    )
    layout: Literal["plain", "hh_transcript"] = Field(
        "plain", description="hh_transcript: chosen/rejected are whole '\\n\\nHuman: … \\n\\nAssistant: …' dialogues"
    )
    separator: str = Field("\n\n", min_length=1, description="what divides documents in a text file")


class PreferenceConfig(StrictConfig):
    """Preference pairs: `prompt`, `chosen`, `rejected` (with hh_transcript the prompt is cut from the dialogue)."""

    train: tuple[SourceConfig, ...] = Field((), description="pairs that train the reward model")
    held_out: tuple[SourceConfig, ...] = Field((), description="pairs that only judge it")
    held_out_fraction: float = Field(0.1, gt=0, lt=0.5, description="share held out where no held_out source is given")


class DataConfig(StrictConfig):
    """All sources of a run."""

    root: Path = Field(Path("."), description="folder that relative paths start from")
    prompts: tuple[SourceConfig, ...] = Field(min_length=1, description="prompts to roll out; column `prompt`")
    held_out_prompts: tuple[SourceConfig, ...] = Field((), description="prompts on which the reward is judged")
    preferences: PreferenceConfig = Field(default_factory=PreferenceConfig)
    sft: tuple[SourceConfig, ...] = Field((), description="columns `prompt`, `response`")
    ptx: tuple[SourceConfig, ...] = Field((), description="general text for PPO-ptx and perplexity; column `text`")
    ptx_held_out_documents: int = Field(32, ge=1, description="documents kept for perplexity, never trained on")
    domain_weights: dict[str, float] = Field(
        default_factory=dict[str, float], description="sampling weight by domain (G5); a domain not named has weight 1"
    )
    general_fraction: float = Field(0.0, ge=0, le=0.5, description="share of prompts taken from the SFT data (G5)")
    system_prompt: str | None = Field(None, description="system message; None leaves it to the chat template")
