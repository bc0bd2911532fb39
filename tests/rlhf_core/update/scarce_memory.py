"""One update in a process of its own, whose address space may be limited. Usage: scarce_memory.py FOLDER MIB."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from rlhf_core.engines.protocols import RolloutTensors
from rlhf_core.engines.torch_trainer import TorchTrainer
from rlhf_core.update.ppo import PpoUpdate
from tests.rlhf_core.engines.trainer_case import CONTROL, CPU, parameters, ppo, random_experience, run_config

ROWS, WIDTH = 256, 60


def main(folder: Path, extra_mib: int) -> None:
    """Update on rows of 120 tokens with `extra_mib` of address space beyond what is in use; 0 for no limit."""
    torch.set_num_threads(1)
    optimizer = {"learning_rate": 1e-1, "warmup_steps": 0, "epsilon": 1.0, "max_grad_norm": 1e9}
    settings = ppo(actor=optimizer, critic=optimizer, epochs=1, mini_batch_rollouts=ROWS, micro_batch_rollouts=ROWS)
    rollout = {"prompts_per_iteration": ROWS, "max_new_tokens": WIDTH}
    trainer = TorchTrainer(run_config(folder / "model", ppo=settings, rollout=rollout), CPU)
    trainer.evaluation_batch.size = 8
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 40, (2, ROWS, WIDTH), generator=draw)
    everywhere = torch.ones(ROWS, WIDTH, dtype=torch.bool)
    experience = random_experience(trainer, RolloutTensors(ids[0], everywhere, ids[1], everywhere))
    if extra_mib:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + extra_mib * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    metrics = PpoUpdate(trainer, experience, [], CONTROL).run(seed=1)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    save_file(parameters(trainer.policy), folder / f"policy-{extra_mib}.safetensors")
    (folder / f"metrics-{extra_mib}.json").write_text(json.dumps(metrics))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
