"""Every algorithm, through the product's own update, comes to the optimum that is known in closed form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.convergence.toy import Toy, make_toy_model, reward_table, toy_run

UPDATES, ROLLOUTS = 100, 256
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "grpo": {"scale_by_group_std": False},
    "rloo": {},
    "reinforce_plus_plus": {},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy_model(tmp_path_factory.mktemp("toy") / "model")


def trained(model: Path, kind: str, beta: float, *, updates: int = UPDATES) -> tuple[float, float]:
    """Exact KL to the optimum, before and after training."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    config = toy_run(model, kind, updates=updates, rollouts=ROLLOUTS, algorithm=ALGORITHMS[kind])
    toy = Toy(config, beta, reward_table(), group_size=ROLLOUTS // 8, rollouts_per_update=ROLLOUTS)
    before = toy.distance()
    for number in range(updates):
        toy.update(number)
    torch.set_num_threads(threads)
    return before, toy.distance()


@pytest.mark.parametrize("beta", [0.5, 0.8])
@pytest.mark.parametrize("kind", list(ALGORITHMS))
def test_training_comes_to_the_kl_regularised_optimum(model, kind, beta):
    before, after = trained(model, kind, beta)
    assert before > 0.5
    assert after < 0.05
