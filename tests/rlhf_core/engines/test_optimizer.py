"""The optimizer's schedule, clipping and refusal of foreign moments."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlhf_core.config.ppo import OptimizerConfig
from rlhf_core.control.learning_rate import warmup_cosine
from rlhf_core.engines.optimizer import ScheduledAdamW
from rlhf_core.errors import CheckpointError


def made(**settings) -> tuple[nn.Linear, ScheduledAdamW]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    config = OptimizerConfig(**({"learning_rate": 1e-2, "warmup_steps": 2, "max_grad_norm": 1.0} | settings))
    return model, ScheduledAdamW(model, config, total_steps=6)


def set_gradients(model: nn.Module, value: float) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)


def test_the_schedule_is_followed_step_by_step():
    model, optimizer = made()
    for step in range(8):
        set_gradients(model, 0.1)
        expected = warmup_cosine(step, peak=1e-2, warmup_steps=2, total_steps=6, floor_fraction=0.1)
        assert optimizer.step().learning_rate == pytest.approx(expected)
    assert optimizer.steps == 8


def test_the_norm_is_reported_before_clipping_and_the_clipped_gradient_has_the_limit_as_norm():
    model, optimizer = made(epsilon=1e6, betas=(0.0, 0.0), schedule="constant", warmup_steps=0, learning_rate=0.1)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    set_gradients(model, 10.0)
    result = optimizer.step()
    moved = torch.cat([p.detach().flatten() for p in model.parameters()]).double().norm().item()
    assert result.grad_norm == pytest.approx(10.0 * 8**0.5)
    assert result.is_clipped
    assert moved == pytest.approx(0.1 * 1.0 / 1e6, rel=1e-4)  # With a huge epsilon a step is rate × gradient / epsilon.


def test_a_gradient_within_the_limit_is_not_clipped():
    model, optimizer = made()
    set_gradients(model, 1e-3)
    assert not optimizer.step().is_clipped


def test_a_step_releases_the_gradients():
    model, optimizer = made()
    set_gradients(model, 0.1)
    optimizer.step()
    assert all(p.grad is None for p in model.parameters())


def test_weight_decay_spares_vectors():
    model, optimizer = made(weight_decay=0.5, warmup_steps=0)
    bias, weight = model.bias.detach().clone(), model.weight.detach().clone()
    set_gradients(model, 0.0)
    optimizer.step()
    assert torch.equal(model.bias, bias)
    assert model.weight.abs().sum() < weight.abs().sum()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda moments: moments | {"other/step": torch.tensor(1.0)}, "'other'"),
        (lambda moments: {k: v for k, v in moments.items() if k != "bias/exp_avg"}, "found nothing"),
        (lambda moments: moments | {"weight/exp_avg": torch.zeros(5)}, r"found shape \(5,\)"),
    ],
)
def test_foreign_moments_are_refused_with_file_expectation_and_finding(change, message):
    model, optimizer = made()
    set_gradients(model, 0.1)
    optimizer.step()
    with pytest.raises(CheckpointError, match=message) as caught:
        optimizer.require_fitting(change(optimizer.moments()), "actor.safetensors")
    assert "actor.safetensors" in str(caught.value)
