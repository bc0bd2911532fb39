"""Every algorithm, through the product's own update, comes to the optimum that is known in closed form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_core.experience import build
from rlhf_core.update import actor_loss
from tests.convergence.toy import LENGTH, Toy, make_toy_model, reward_table, toy_run

UPDATES, ROLLOUTS = 100, 512
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "grpo": {"scale_by_group_std": False},
    "rloo": {},
    "reinforce_plus_plus": {},
}
NEAR = 0.05
"""Nats of KL(pi‖pi*) within which the optimum counts as reached; training starts above 0.5."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy_model(tmp_path_factory.mktemp("toy") / "model")


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def trained(model: Path, kind: str, beta: float, *, updates: int = UPDATES) -> tuple[float, float]:
    """Exact KL to the optimum, before and after training."""
    config = toy_run(model, kind, updates=updates, rollouts=ROLLOUTS, algorithm=ALGORITHMS[kind])
    toy = Toy(config, beta, reward_table(), group_size=ROLLOUTS // 8, rollouts_per_update=ROLLOUTS)
    before = toy.distance()
    for number in range(updates):
        toy.update(number)
    return before, toy.distance()


@pytest.mark.parametrize("beta", [0.65, 0.8])
@pytest.mark.parametrize("kind", list(ALGORITHMS))
def test_training_comes_to_the_kl_regularised_optimum(model, kind, beta):
    before, after = trained(model, kind, beta)
    assert before > 0.5
    assert after < NEAR


def wrong_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = actor_loss.ppo_policy_loss
    monkeypatch.setattr(
        actor_loss, "ppo_policy_loss", lambda new, old, a, mask, **rest: sound(new, old, -a, mask, **rest)
    )


def last_token_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = actor_loss.ppo_policy_loss

    def masked(new: Any, old: Any, advantages: torch.Tensor, mask: torch.Tensor, **rest: Any) -> Any:
        is_last = torch.arange(len(advantages)) % LENGTH == LENGTH - 1
        return sound(new, old, advantages.masked_fill(is_last, 0.0), mask, **rest)

    monkeypatch.setattr(actor_loss, "ppo_policy_loss", masked)


def no_kl(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = build.shape_rewards
    monkeypatch.setattr(build, "shape_rewards", lambda *args, kl_coef, **rest: sound(*args, kl_coef=0.0, **rest))


@pytest.mark.parametrize("mutate", [wrong_sign, last_token_masked, no_kl])
def test_a_wrong_sign_mask_or_missing_kl_misses_the_optimum(model, monkeypatch, mutate):
    mutate(monkeypatch)
    _, after = trained(model, "rloo", 0.8, updates=UPDATES // 2)
    assert after > 3 * NEAR
