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
    format: Format = Field(default="auto", description="auto goes by the file's ending")
    columns: dict[str, str] = Field(
        default_factory=dict[str, str],
        description="our column name → theirs, or a template such as '{instruction} {input}'",
    )
    subset: str | None = Field(default=None, description="hub configuration name")
    data_dir: str | None = Field(default=None, description="folder inside the hub repository")
    split: str = Field(default="train", description="hub split")
    limit: int | None = Field(default=None, ge=1, description="rows taken, from the start")
    domain: str | None = Field(
        default=None, description="domain of every row; otherwise the `domain` column, otherwise 'general'"
    )
    layout: Literal["plain", "hh_transcript"] = Field(
        default="plain",
        description="hh_transcript: chosen/rejected are whole '\\n\\nHuman: … \\n\\nAssistant: …' dialogues",
    )
    separator: str = Field(default="\n\n", min_length=1, description="what divides documents in a text file")


class PreferenceConfig(StrictConfig):
    """Preference pairs: `prompt`, `chosen`, `rejected` (with hh_transcript the prompt is cut from the dialogue)."""

    train: tuple[SourceConfig, ...] = Field(default=(), description="pairs that train the reward model")
    held_out: tuple[SourceConfig, ...] = Field(default=(), description="pairs that only judge it")
    held_out_fraction: float = Field(
        default=0.1, gt=0, lt=0.5, description="share held out where no held_out source is given"
    )


class DataConfig(StrictConfig):
    """All sources of a run."""

    root: Path = Field(default=Path("."), description="folder that relative paths start from")
    prompts: tuple[SourceConfig, ...] = Field(min_length=1, description="prompts to roll out; column `prompt`")
    held_out_prompts: tuple[SourceConfig, ...] = Field(default=(), description="prompts on which the reward is judged")
    preferences: PreferenceConfig = Field(default_factory=PreferenceConfig)
    sft: tuple[SourceConfig, ...] = Field(default=(), description="columns `prompt`, `response`")
    ptx: tuple[SourceConfig, ...] = Field(
        default=(), description="general text for PPO-ptx and perplexity; column `text`"
    )
    ptx_held_out_documents: int = Field(default=32, ge=1, description="documents kept for perplexity, never trained on")
    domain_weights: dict[str, float] = Field(
        default_factory=dict[str, float], description="sampling weight by domain (G5); a domain not named has weight 1"
    )
    general_fraction: float = Field(
        default=0.0, ge=0, le=0.5, description="share of prompts taken from the SFT data (G5)"
    )
    system_prompt: str | None = Field(default=None, description="system message; None leaves it to the chat template")
