"""What the stages that sample and score need of a runtime, with a random tiny model and without the trainer."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from rlhf_core.config.run import RunConfig
from rlhf_core.data import prepare
from rlhf_core.data.refs import CheckpointRef, ControlState
from rlhf_core.data.store import MANIFEST, RunFolder, write_json
from rlhf_core.engines.transformers_rollout import TransformersRollout
from rlhf_core.models.loading import load_policy, load_tokenizer
from rlhf_core.rewards.scorers import build_scorer
from rlhf_core.safety.build import build_safety
from rlhf_core.safety.protocol import SafetyClassifier
from tests.tiny_model import TinyWorld


class SilentBar:
    def advance(self, n: int = 1) -> None:
        """Show nothing."""


@dataclass
class StageRuntime:
    """Stands for `Runtime` where no trainer is needed."""

    config: RunConfig
    folder: RunFolder
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    scorer_calls: int = 0

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return load_tokenizer(self.config.model)

    def rollout_engine(self, policy: CheckpointRef) -> TransformersRollout:
        model = load_policy(self.config.model.policy, self.config.model, self.device)
        return TransformersRollout(model, self.tokenizer, batch_size=self.config.rollout.batch_size)

    def sync_metrics(self) -> dict[str, float]:
        return {}

    def scorer(self) -> Any:
        self.scorer_calls += 1
        return build_scorer(self.config, self.folder, self.tokenizer, self.device)

    def safety(self) -> SafetyClassifier:
        return build_safety(self.config.rollout.rejection.safety, self.device)

    @contextmanager
    def progress(self, description: str, total: int) -> Generator[SilentBar]:
        yield SilentBar()


def make_stage_runtime(root: Path, world: TinyWorld, **settings: Any) -> tuple[StageRuntime, CheckpointRef]:
    """A runtime on a fresh run folder with prepared data, and a checkpoint to sample from."""
    config = RunConfig.model_validate(
        {
            "name": "run",
            "home": root,
            "data": {
                "root": world.data,
                "prompts": [{"path": "prompts.jsonl"}],
                "held_out_prompts": [{"path": "prompts_heldout.jsonl"}],
                "preferences": {
                    "train": [{"path": "preferences_train.jsonl"}],
                    "held_out": [{"path": "preferences_eval.jsonl"}],
                },
            },
            "model": {"policy": str(world.model)},
            "ppo": {"ptx": {"enabled": False}},
            **settings,
        }
    )
    runtime = StageRuntime(config, RunFolder(config.folder))
    prepare.run_stage(runtime)  # type: ignore[arg-type]
    policy = CheckpointRef(step=0, path=root / "policy", control=ControlState(kl_coef=0.1, ptx_coef=0.0))
    write_json(policy.path / MANIFEST, {"step": 0})
    return runtime, policy
