"""A tiny trainer and random rollouts for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rlhf_core.config.run import RunConfig
from rlhf_core.data.refs import ControlState
from rlhf_core.engines.protocols import ExperienceTensors, RolloutEvaluation, RolloutTensors
from rlhf_core.engines.torch_trainer import TorchTrainer

CPU = torch.device("cpu")
LENGTHS = ((3, 4), (5, 1), (2, 6), (4, 3), (1, 5), (6, 2), (3, 3), (2, 2))
"""Prompt and response tokens of each rollout."""
CONTROL = ControlState(kl_coef=0.05, ptx_coef=0.0)


def run_config(model: Path, /, **sections: Any) -> RunConfig:
    """A run without ptx and with learning rates at which one step shows; `sections` replace parts of it."""
    settings: dict[str, Any] = {
        "name": "tiny",
        "home": model.parent / "runs",
        "data": {"prompts": [{"path": "prompts.jsonl"}]},
        "model": {"policy": str(model)},
        "reward": {"scorer": "callable", "callable": {"path": "math:sqrt"}},
        "rollout": {"prompts_per_iteration": 8, "max_new_tokens": 8},
        "ppo": ppo(),
    }
    return RunConfig.model_validate(settings | sections)


def ppo(**changes: Any) -> dict[str, Any]:
    """PPO settings under which nothing ends an epoch early."""
    settings: dict[str, Any] = {
        "actor": {"learning_rate": 1e-3, "warmup_steps": 0},
        "critic": {"learning_rate": 1e-3, "warmup_steps": 0},
        "epochs": 2,
        "mini_batch_rollouts": 4,
        "micro_batch_rollouts": 4,
        "ptx": {"enabled": False},
        "epoch_stop": {"max_kl_nats": 1e3, "max_clip_fraction": 1.0, "min_mean_abs_advantage": 0.0},
    }
    return settings | changes


def random_rollouts(
    *, seed: int = 0, extra_left: int = 0, extra_right: int = 0, vocab: int = 40, filler: int = 0
) -> RolloutTensors:
    """Rollouts of `LENGTHS`; the extra padding and the filler must not matter."""
    draw = torch.Generator().manual_seed(seed)
    widths = [max(pair[i] for pair in LENGTHS) for i in (0, 1)]
    prompt_width, response_width = widths[0] + extra_left, widths[1] + extra_right
    prompt_ids = torch.full((len(LENGTHS), prompt_width), filler)
    response_ids = torch.full((len(LENGTHS), response_width), filler)
    prompt_mask, response_mask = (torch.zeros_like(ids, dtype=torch.bool) for ids in (prompt_ids, response_ids))
    for row, (prompt, response) in enumerate(LENGTHS):
        prompt_ids[row, prompt_width - prompt :] = torch.randint(0, vocab, (prompt,), generator=draw)
        response_ids[row, :response] = torch.randint(0, vocab, (response,), generator=draw)
        prompt_mask[row, prompt_width - prompt :] = True
        response_mask[row, :response] = True
    return RolloutTensors(prompt_ids, prompt_mask, response_ids, response_mask)


def random_experience(trainer: TorchTrainer, rollouts: RolloutTensors, *, seed: int = 1) -> ExperienceTensors:
    """What the trainer says of the rollouts, with random advantages and returns that do not depend on padding."""
    said = trainer.evaluate(rollouts)
    draw, mask = torch.Generator().manual_seed(seed), rollouts.response_mask
    advantages, returns = (torch.zeros(mask.shape) for _ in range(2))
    advantages[mask], returns[mask] = torch.randn(2, int(mask.sum()), generator=draw)
    return learnt_from(rollouts, said, advantages, returns)


def learnt_from(
    rollouts: RolloutTensors, said: RolloutEvaluation, advantages: torch.Tensor, returns: torch.Tensor
) -> ExperienceTensors:
    """What an update learns from, where the trainer itself is the old policy."""
    return ExperienceTensors(
        rollouts,
        said.logprobs,
        said.ref_logprobs,
        said.values,
        advantages,
        returns,
        importance=torch.ones_like(said.logprobs),
    )


def parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def perturb(model: torch.nn.Module, *, seed: int = 2, scale: float = 0.02) -> None:
    """Move every weight a little, so that policy and reference differ and values are not all 0."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=draw))
