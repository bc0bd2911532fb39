"""KL estimators, their gradients and the controllers of β against verl 0.9 and torchrl 0.14."""

from __future__ import annotations

import pytest
import torch
from torchrl.data.llm.utils import AdaptiveKLController as TorchrlController
from torchrl.objectives.llm.distillation import k3_kl_token_estimate
from verl.trainer.ppo import core_algos

from rlhf_core.control.kl_coef import ProportionalKlCoef
from rlhf_core.numerics.kl import kl_k1, kl_k2, kl_k3
from rlhf_core.numerics.kl_loss import kl_loss

ESTIMATORS = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}
KL_VALUES = [0.0, 0.004, 0.019, 0.02, 0.021, 0.5, 30.0]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_estimators_are_verls(batch, name):
    theirs = core_algos.kl_penalty(batch.logprobs, batch.old_logprobs, name)
    torch.testing.assert_close(ESTIMATORS[name](batch.logprobs - batch.old_logprobs), theirs, rtol=1e-12, atol=1e-12)


def test_k3_is_torchrls(batch):
    theirs = k3_kl_token_estimate(batch.old_logprobs, batch.logprobs)
    torch.testing.assert_close(kl_k3(batch.logprobs - batch.old_logprobs), theirs, rtol=1e-12, atol=1e-14)


def test_verl_reports_ten_nats_where_k3_is_more():
    logprobs, reference = torch.tensor([-5.0], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    assert core_algos.kl_penalty(logprobs, reference, "k3").item() == 10.0
    assert kl_k3(logprobs - reference).item() == pytest.approx(142.413, abs=1e-3)


@pytest.mark.parametrize(("ours", "theirs"), [("k1", "k1"), ("k2", "k2"), ("k3", "k3"), ("k2", "k3+")])
def test_loss_gradients_are_verls_whose_k3_plus_has_that_of_k2(batch, ours, theirs):
    logprobs = batch.logprobs.requires_grad_()
    other = core_algos.kl_penalty(logprobs, batch.old_logprobs, theirs)
    want = torch.autograd.grad(core_algos.agg_loss(other, batch.mask.double(), "token-mean"), logprobs)[0]
    mine, _ = kl_loss(logprobs, batch.old_logprobs, batch.mask, estimator=ours, token_count=batch.tokens)
    torch.testing.assert_close(torch.autograd.grad(mine, logprobs)[0], want, rtol=1e-12, atol=1e-12)


def test_beyond_ten_nats_verls_k3_has_no_gradient_and_ours_still_pulls_back():
    reference = torch.zeros(1, 1, dtype=torch.float64)
    logprobs = torch.full_like(reference, -4.0).requires_grad_()
    theirs = torch.autograd.grad(core_algos.kl_penalty(logprobs, reference, "k3").sum(), logprobs)[0]
    loss, _ = kl_loss(logprobs, reference, reference == 0, estimator="k3", token_count=1)
    assert theirs.item() == 0.0
    assert torch.autograd.grad(loss, logprobs)[0].item() == pytest.approx(1 - torch.e**4, rel=1e-9)


def ours(start=0.1):
    return ProportionalKlCoef(
        start, target_nats=0.02, horizon_rollouts=1000, batch_rollouts=64, minimum=1e-6, maximum=1e6
    )


def test_the_proportional_controller_is_verls():
    mine, theirs = ours(), core_algos.AdaptiveKLController(init_kl_coef=0.1, target_kl=0.02, horizon=1000)
    for kl in KL_VALUES:
        theirs.update(current_kl=kl, n_steps=64)
        assert mine.observe(kl) == pytest.approx(float(theirs.value), rel=1e-12)


def test_the_proportional_controller_is_torchrls_which_is_told_rewards_of_kl():
    """torchrl takes `-β·kl` of each rollout, divides by its own β again and counts the rollouts."""
    mine, theirs = ours(), TorchrlController(init_kl_coef=0.1, target=0.02, horizon=1000)
    for kl in KL_VALUES:
        rewards = torch.full((64,), -kl * float(theirs.coef), dtype=torch.float64)
        assert mine.observe(kl) == pytest.approx(float(theirs.update(rewards)), rel=1e-9)


def test_verl_lets_beta_fall_below_zero_where_ours_refuses_the_horizon():
    theirs = core_algos.AdaptiveKLController(init_kl_coef=0.1, target_kl=0.02, horizon=10)
    theirs.update(current_kl=0.0, n_steps=64)
    assert theirs.value < 0
    with pytest.raises(Exception, match="β zero or negative"):
        ProportionalKlCoef(0.1, target_nats=0.02, horizon_rollouts=10, batch_rollouts=64)
