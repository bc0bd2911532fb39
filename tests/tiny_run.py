"""A run small enough for a test: the tiny world, two rounds of two iterations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rlhf_core.config.run import RunConfig
from tests.tiny_model import TinyWorld


def tiny_settings(world: TinyWorld, home: Path, **changes: Any) -> dict[str, Any]:
    """Settings of the tiny run as they would stand in its YAML file; `changes` replace whole sections."""
    return {
        "name": "tiny",
        "home": str(home),
        "rounds": 2,
        "iterations_per_round": 2,
        "data": {
            "root": str(world.data),
            "prompts": [{"path": "prompts.jsonl"}],
            "held_out_prompts": [{"path": "prompts_heldout.jsonl"}],
            "preferences": {
                "train": [{"path": "preferences_train.jsonl"}],
                "held_out": [{"path": "preferences_eval.jsonl"}],
            },
            "sft": [{"path": "sft.jsonl"}],
            "ptx": [{"path": "ptx.jsonl"}],
            "ptx_held_out_documents": 4,
        },
        "model": {"policy": str(world.model)},
        "rollout": {"prompts_per_iteration": 8, "max_new_tokens": 8, "min_response_tokens": 2, "batch_size": 8},
        "reward": {"score_truncated": True},  # The random model seldom ends by itself.
        "reward_model": {
            "train": {"learning_rate": 3e-3, "max_tokens": 64, "epochs": 3},
            "gate": {"min_accuracy": 0.5, "max_length_correlation": 1.0, "confidence": 0.51},
        },
        "ppo": {
            "actor": {"learning_rate": 1e-4, "warmup_steps": 1},
            "critic": {"learning_rate": 5e-4, "warmup_steps": 1},
            "epochs": 2,
            "mini_batch_rollouts": 4,
            "micro_batch_rollouts": 4,
            "ptx": {"documents_per_update": 1, "max_tokens": 32},
        },
        "evaluation": {
            "held_out_rollouts": 8,
            "benchmarks": [
                {"name": "mmlu", "format": "mmlu_csv", "path": "mmlu", "items": 12},
                {"name": "hellaswag", "format": "hellaswag_jsonl", "path": "hellaswag.jsonl", "items": 12},
            ],
        },
    } | changes


def tiny_config(world: TinyWorld, home: Path, **changes: Any) -> RunConfig:
    """The tiny run's configuration."""
    return RunConfig.model_validate(tiny_settings(world, home, **changes))


def write_settings(path: Path, settings: dict[str, Any]) -> Path:
    """Write settings as a YAML file; its path."""
    path.write_text(yaml.safe_dump(settings))
    return path
