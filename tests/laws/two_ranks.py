"""One rank of a gloo group: three updates, of whose mini-batches it has a share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from rlhf_core.data.refs import ControlState
from rlhf_core.engines.torch_trainer import TorchTrainer
from rlhf_core.experience.build import Estimation, Judgement, build_experience
from rlhf_core.numerics.reductions import SOLO, Ranks
from rlhf_core.update.ppo import PpoUpdate
from tests.rlhf_core.engines.trainer_case import (
    CPU,
    learnt_from,
    parameters,
    perturb,
    ppo,
    random_rollouts,
    run_config,
)

UPDATES = 3
SCORES = torch.tensor([0.3, -1.2, 0.9, 2.0, -0.4, 0.1, -2.0, 0.6])


def three_updates(
    model: Path, algorithm: dict[str, Any], ranks: Ranks
) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    """Parameters of policy and critic after three updates on all rollouts, and the metrics of each."""
    # An epsilon above the rounding of gradients: Adam would blow up noise where a gradient is almost 0.
    optimizer = {"learning_rate": 1e-2, "warmup_steps": 0, "epsilon": 1e-3}
    trainer = TorchTrainer(
        run_config(
            model,
            algorithm=algorithm,
            rollout={"prompts_per_iteration": 2, "samples_per_prompt": 4, "max_new_tokens": 8},
            ppo=ppo(actor=optimizer, critic=optimizer, mini_batch_rollouts=8, epochs=2),
        ),
        CPU,
    )
    if trainer.critic is not None:
        perturb(trainer.critic)
    rollouts = random_rollouts()
    judged = Judgement(
        scores=SCORES,
        is_truncated=torch.zeros(len(SCORES), dtype=torch.bool),
        group_ids=torch.tensor([row // 4 for row in range(len(SCORES))]),
    )
    found: list[dict[str, float]] = []
    for number in range(1, UPDATES + 1):
        said = trainer.evaluate(rollouts)
        how = Estimation(kl_coef=0.05, iteration=number, config=trainer.config)
        built, _ = build_experience(said, judged, rollouts.response_mask, how)
        experience = learnt_from(rollouts, said, built.advantages, built.returns)
        control = ControlState(kl_coef=0.05, ptx_coef=0.0)
        update = PpoUpdate(trainer, experience, [], control, iteration=number, ranks=ranks)
        found.append(update.run(seed=number))
    models = {"policy": trainer.policy} | ({} if trainer.critic is None else {"critic": trainer.critic})
    tensors = {f"{name}.{key}": value for name, held in models.items() for key, value in parameters(held).items()}
    return tensors, found


def run_rank(rank: int, model: Path, algorithm: dict[str, Any], folder: Path) -> None:
    """What each process does."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)

    def all_reduce(tensor: torch.Tensor) -> torch.Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    tensors, metrics = three_updates(model, algorithm, Ranks(rank, 2, all_reduce))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / f"rank{rank}.safetensors")
    (folder / f"rank{rank}.json").write_text(json.dumps(metrics))
    dist.destroy_process_group()


def one_rank(model: Path, algorithm: dict[str, Any]) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    """The same on a single rank."""
    return three_updates(model, algorithm, SOLO)
