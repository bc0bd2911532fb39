"""This project's rollout engine, experience and update on the common settings, timed by phase."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from rlhf_core.config.run import RunConfig
from rlhf_core.data.collate import padded
from rlhf_core.data.refs import ControlState
from rlhf_core.engines.protocols import ExperienceTensors, Generation, GenerationRequest, RolloutTensors, Sampling
from rlhf_core.engines.transformers_rollout import TransformersRollout
from rlhf_core.experience.build import Estimation, build_experience, judgement
from rlhf_core.models.loading import load_tokenizer
from rlhf_core.workers.inline import InlineWorkers
from trl_comparison.measure import PhaseMeter
from trl_comparison.settings import Settings, read_settings


class ForcedLengths(TransformersRollout):
    """Ends each row at its wanted length and nowhere else."""

    lengths: list[int]

    def _take(self, draft: Any, token: int, logprob: float, stops: Any) -> None:
        super()._take(draft, token, logprob, stops)
        draft.is_done = len(draft.response_ids) >= self.lengths[draft.index]


def main(settings_path: str, result_path: str) -> None:
    """Train and write the phases' measurements."""
    settings = read_settings(settings_path)
    torch.set_num_threads(settings.threads)
    config = run_config(settings)
    meter = PhaseMeter()
    workers = InlineWorkers(config, torch.device("cpu"))
    for number in range(settings.warmup_updates + settings.updates):
        meter.enter("generation")
        generations = sample(workers, config, settings, number)
        meter.enter("experience")
        experience = experience_of(workers, config, settings, generations)
        meter.enter("update")
        workers.update(experience, [], ControlState(kl_coef=0.05, ptx_coef=0.0), iteration=number + 1, seed=number)
        meter.enter(None)
    meter.write(result_path, skipped=settings.warmup_updates)


def run_config(settings: Settings) -> RunConfig:
    """The run that TRL's settings describe; nothing ends its epochs early."""
    optimizer = {"learning_rate": 1e-6, "warmup_steps": 0}
    return RunConfig.model_validate(
        {
            "name": "benchmark",
            "data": {"prompts": [{"path": "none"}]},
            "model": {
                "policy": settings.model,
                "autocast": "bfloat16" if settings.dtype == "bfloat16" else "off",
            },
            "reward": {"scorer": "callable", "callable": {"path": "math:sqrt"}},
            "rollout": {
                "prompts_per_iteration": settings.rollouts,
                "max_new_tokens": settings.response_tokens,
                "batch_size": settings.rollouts,
            },
            "ppo": {
                "actor": optimizer,
                "critic": optimizer,
                "epochs": settings.epochs,
                "mini_batch_rollouts": settings.mini_batch,
                "micro_batch_rollouts": settings.micro_batch,
                "ptx": {"enabled": False},
                "loss_kl": {"coef": 0.0},
                "epoch_stop": {"max_kl_nats": 1e9, "max_clip_fraction": 1.0, "min_mean_abs_advantage": 0.0},
            },
        }
    )


def sample(workers: InlineWorkers, config: RunConfig, settings: Settings, number: int) -> list[Generation]:
    """One response of the wanted length for each prompt."""
    engine = ForcedLengths(
        workers.policy_model(),
        load_tokenizer(config.model),
        batch_size=settings.rollouts,
        autocast=config.model.autocast,
    )
    engine.eos_ids, engine.lengths = frozenset(), settings.lengths()
    requests = [GenerationRequest(tuple(p), seed=1000 * number + i) for i, p in enumerate(settings.prompts())]
    return engine.generate(requests, Sampling(max_new_tokens=settings.response_tokens, temperature=1.0))


def experience_of(
    workers: InlineWorkers, config: RunConfig, settings: Settings, generations: list[Generation]
) -> ExperienceTensors:
    """What the experience stage does, without its files; scores are random."""
    prompt_ids, prompt_mask = padded(settings.prompts(), 0, is_left=True)
    response_ids, response_mask = padded([list(generation.response_ids) for generation in generations], 0)
    rollouts = RolloutTensors(prompt_ids, prompt_mask, response_ids, response_mask)
    said = workers.evaluate_rollouts(rollouts)
    draw = random.Random(settings.seed)
    count = len(generations)
    judged = judgement([draw.gauss(0.0, 1.0) for _ in generations], ["natural"] * count, [str(i) for i in range(count)])
    how = Estimation(kl_coef=0.05, iteration=1, config=config)
    built, _ = build_experience(said, judged, response_mask, how)
    return ExperienceTensors(
        rollouts,
        said.logprobs,
        said.ref_logprobs,
        said.values,
        built.advantages,
        built.returns,
        importance=torch.ones_like(said.logprobs),
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
