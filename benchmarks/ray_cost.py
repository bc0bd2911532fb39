"""What Ray and DeepSpeed cost with one rank: the same evaluation and update, inline and by a Ray actor, in turns.

python benchmarks/ray_cost.py [--zero-stages 0 1] [--alternations 3] [--layers 30] [--rollouts 8] [--threads 2]
    [--folder DIR]

A random Llama (135M parameters with 30 layers), rollouts of 64 + 64 tokens, one epoch. Each side runs once before
anything is counted. Prints every pair and, for each phase, the median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from trl_comparison.model_folder import make_model_folder
from trl_comparison.our_side import run_config
from trl_comparison.settings import Settings

from rlhf_core.config.run import RunConfig
from rlhf_core.data.refs import ControlState
from rlhf_core.engines.protocols import ExperienceTensors, RolloutEvaluation, RolloutTensors, WorkerGroup
from rlhf_core.workers.inline import InlineWorkers
from rlhf_core.workers.local_ray import disconnect
from rlhf_core.workers.ray_group import RayWorkers

PROMPT_TOKENS = RESPONSE_TOKENS = 64
PHASES = ("evaluate_rollouts", "update")


def settings_of(given: argparse.Namespace, model: Path) -> Settings:
    return Settings(
        model=str(model),
        dtype="float32",
        threads=given.threads,
        rollouts=given.rollouts,
        prompt_tokens=PROMPT_TOKENS,
        response_tokens=RESPONSE_TOKENS,
        is_ragged=False,
        epochs=1,
        mini_batch=given.rollouts // 2,
        micro_batch=min(4, given.rollouts // 2),
        warmup_updates=1,
        updates=given.alternations,
        seed=0,
    )


def with_ray(config: RunConfig, *, zero_stage: int, threads: int) -> RunConfig:
    cluster = {"engine": "ray", "ranks": 1, "zero_stage": zero_stage, "cpus_per_rank": threads}
    return RunConfig.model_validate(config.model_dump() | {"cluster": cluster})


def random_rollouts(settings: Settings) -> RolloutTensors:
    draw = torch.Generator().manual_seed(settings.seed)
    prompts = torch.tensor(settings.prompts())
    responses = torch.randint(3, 40000, (settings.rollouts, settings.response_tokens), generator=draw)
    return RolloutTensors(prompts, torch.ones_like(prompts).bool(), responses, torch.ones_like(responses).bool())


def experience_of(rollouts: RolloutTensors, said: RolloutEvaluation, seed: int) -> ExperienceTensors:
    """Random advantages and returns; the same for both sides."""
    draw = torch.Generator().manual_seed(seed)
    advantages, returns = torch.randn(2, *rollouts.response_mask.shape, generator=draw)
    return ExperienceTensors(
        rollouts,
        said.logprobs,
        said.ref_logprobs,
        said.values,
        advantages,
        returns,
        importance=torch.ones_like(said.logprobs),
    )


def timed_step(workers: WorkerGroup, rollouts: RolloutTensors, number: int) -> tuple[dict[str, float], float]:
    """Seconds by phase, and the update's policy loss, by which the sides are compared."""
    started = time.perf_counter()
    said = workers.evaluate_rollouts(rollouts)
    evaluated = time.perf_counter()
    experience = experience_of(rollouts, said, number)
    control = ControlState(kl_coef=0.05, ptx_coef=0.0)
    metrics = workers.update(experience, [], control, iteration=number + 1, seed=number)
    seconds = dict(zip(PHASES, (evaluated - started, time.perf_counter() - evaluated), strict=True))
    return seconds, metrics["update/policy_loss"]


def compare(inline: InlineWorkers, ray: RayWorkers, settings: Settings, label: str) -> None:
    rollouts = random_rollouts(settings)
    ratios: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for number in range(settings.warmup_updates + settings.updates):
        turns: list[tuple[str, Any]] = [("inline", inline), ("ray", ray)]
        found = {name: timed_step(workers, rollouts, number) for name, workers in turns[:: 1 if number % 2 else -1]}
        (plain, plain_loss), (remote, remote_loss) = found["inline"], found["ray"]
        if abs(plain_loss - remote_loss) > 1e-3 * (abs(plain_loss) + 1e-3):
            raise SystemExit(
                f"the sides do not do the same work: policy loss {plain_loss} inline, {remote_loss} by Ray."
            )
        is_counted = number >= settings.warmup_updates
        for phase in PHASES:
            if is_counted:
                ratios[phase].append(remote[phase] / plain[phase])
            print(
                f"{label} {'pair ' + str(number) if is_counted else 'warm-up'}: {phase} inline {plain[phase]:.2f} s, "
                f"ray {remote[phase]:.2f} s, ratio {remote[phase] / plain[phase]:.3f}, load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    for phase, found_ratios in ratios.items():
        print(f"{label} {phase}: median ratio {statistics.median(found_ratios):.3f}", flush=True)


def measure(given: argparse.Namespace, place: Path) -> None:
    torch.set_num_threads(given.threads)
    settings = settings_of(given, make_model_folder(place / "model", layers=given.layers))
    config = run_config(settings)
    for stage in given.zero_stages:
        inline = InlineWorkers(config, torch.device("cpu"))
        ray = RayWorkers(with_ray(config, zero_stage=stage, threads=given.threads))
        compare(inline, ray, settings, f"zero_stage={stage}")
        inline.close()
        ray.close()
    disconnect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zero-stages", type=int, nargs="+", default=[0, 1])
    for name, value in {"alternations": 3, "layers": 30, "rollouts": 8, "threads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--folder", type=Path, default=None, help="where the model is written; a temporary folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as place:
        measure(given, Path(place))


if __name__ == "__main__":
    main()
