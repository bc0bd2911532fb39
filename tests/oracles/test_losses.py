"""Clipped objective, dual clip, value clip, aggregation and importance weights against verl 0.9 and torchrl 0.14."""

from __future__ import annotations

import warnings

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torchrl.objectives import ClipPPOLoss
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.workers.config import ActorConfig

from rlhf_core.numerics.aggregation import token_weights
from rlhf_core.numerics.importance import truncated_importance_weights
from rlhf_core.numerics.policy_loss import PolicyClip, ppo_policy_loss
from rlhf_core.numerics.value_loss import clipped_value_loss

NO_DUAL_CLIP = 1e9
"""verl always clips twice; a bound out of reach leaves PPO's own objective."""
CLIPS = [(0.2, 0.2, None), (0.2, 0.28, None), (0.1, 0.3, 1.2)]


def loss_and_gradient(loss, leaf):
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def verls_policy_loss(batch, logprobs, low, high, dual):
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=dual or NO_DUAL_CLIP,
    )
    return core_algos.compute_policy_loss_vanilla(
        batch.old_logprobs, logprobs, batch.advantages, batch.mask.double(), config=config
    )


@pytest.mark.parametrize(("low", "high", "dual"), CLIPS)
def test_the_policy_loss_and_its_gradient_are_verls(batch, low, high, dual):
    logprobs = batch.logprobs.requires_grad_()
    theirs, their_metrics = verls_policy_loss(batch, logprobs, low, high, dual)
    mine, metrics = ppo_policy_loss(
        logprobs,
        batch.old_logprobs,
        batch.advantages,
        batch.mask,
        clip_range=PolicyClip(low, high, dual),
        token_count=batch.tokens,
    )
    for got, want in zip(loss_and_gradient(mine, logprobs), loss_and_gradient(theirs, logprobs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert float(metrics["update/clip_fraction"]) == pytest.approx(their_metrics["actor/pg_clipfrac"], rel=1e-6)
    assert their_metrics["actor/pg_clipfrac"] > 0
    if dual is not None:
        shares = float(metrics["update/dual_clip_fraction"]), their_metrics["actor/pg_clipfrac_lower"]
        assert shares[0] == pytest.approx(shares[1], rel=1e-6)
        assert shares[0] > 0


def test_both_kls_of_old_and_new_estimate_the_same_ours_by_k3_verls_by_k1(batch):
    """verl's is the mean of `old - new`, which can be negative; ours adds `new/old - 1`, whose mean is 0."""
    _, theirs = verls_policy_loss(batch, batch.logprobs, 0.2, 0.2, None)
    _, mine = ppo_policy_loss(
        batch.logprobs, batch.old_logprobs, batch.advantages, batch.mask, clip_range=0.2, token_count=batch.tokens
    )
    excess = (batch.logprobs - batch.old_logprobs)[batch.mask].expm1().mean()
    assert float(mine["update/approx_kl_nats"]) == pytest.approx(theirs["actor/ppo_kl"] + float(excess), rel=1e-6)


def torchrls_ppo(batch, low, high, logits):
    """ClipPPOLoss over one response token a row, two tokens in the vocabulary, the first of which was sampled."""
    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(torch.nn.Identity(), in_keys=["observation"], out_keys=["logits"]),
        ProbabilisticTensorDictModule(
            in_keys=["logits"], out_keys=["action"], distribution_class=torch.distributions.Categorical
        ),
    )
    critic = TensorDictModule(torch.nn.Identity(), in_keys=["new_value"], out_keys=["state_value"])
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=(low, high),
        entropy_bonus=False,
        loss_critic_type="l2",
        clip_value=0.2,
        reduction="none",
        log_explained_variance=False,
    )
    loss.set_keys(sample_log_prob="old_logprob")
    old_values, returns = batch.values[batch.mask], batch.rewards[batch.mask]
    data = {
        "observation": logits,
        "action": torch.zeros(batch.tokens, dtype=torch.long),
        "old_logprob": batch.old_logprobs[batch.mask],
        "advantage": batch.advantages[batch.mask][:, None],
        "new_value": (old_values + 0.4 * batch.advantages[batch.mask])[:, None],
        "state_value": old_values[:, None],
        "value_target": returns[:, None],
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return loss(TensorDict(data, batch_size=[batch.tokens])), data


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28)])
def test_the_policy_loss_and_its_gradient_are_torchrls(batch, low, high):
    chosen = batch.logprobs[batch.mask].clamp(max=-0.01)
    logits = torch.stack([chosen, torch.log1p(-chosen.exp())], dim=1).requires_grad_()
    theirs, data = torchrls_ppo(batch, low, high, logits)
    logprobs = torch.log_softmax(logits, dim=1)[:, 0]
    mine, _ = ppo_policy_loss(
        logprobs,
        data["old_logprob"],
        data["advantage"][:, 0],
        torch.ones_like(logprobs, dtype=torch.bool),
        clip_range=PolicyClip(low, high),
        token_count=batch.tokens,
    )
    pairs = zip(
        loss_and_gradient(mine, logits), loss_and_gradient(theirs["loss_objective"].mean(), logits), strict=True
    )
    for got, want in pairs:
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_the_value_loss_is_half_of_torchrls_squared_error(batch):
    theirs, data = torchrls_ppo(batch, 0.2, 0.2, torch.zeros(batch.tokens, 2, dtype=torch.float64))
    columns = (data["new_value"][:, 0], data["state_value"][:, 0], data["value_target"][:, 0])
    everywhere = torch.ones(batch.tokens, dtype=torch.bool)
    mine, _ = clipped_value_loss(*columns, everywhere, value_clip_range=0.2, token_count=batch.tokens)
    torch.testing.assert_close(mine, theirs["loss_critic"].mean() / 2, rtol=1e-11, atol=1e-12)


def test_the_value_loss_and_its_gradient_are_verls(batch):
    new = (batch.values + 0.4 * batch.advantages).requires_grad_()
    theirs, share = core_algos.compute_value_loss(new, batch.rewards, batch.values, batch.mask.double(), 0.2)
    mine, metrics = clipped_value_loss(
        new, batch.values, batch.rewards, batch.mask, value_clip_range=0.2, token_count=batch.tokens
    )
    for got, want in zip(loss_and_gradient(mine, new), loss_and_gradient(theirs, new), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert float(metrics["update/value_clip_fraction"]) == pytest.approx(float(share), rel=1e-6)


@pytest.mark.parametrize(("mode", "theirs"), [("token", "token-mean"), ("sequence", "seq-mean-token-mean")])
def test_the_mean_over_tokens_and_over_sequences_are_verls(batch, mode, theirs):
    losses = batch.advantages
    weights = token_weights(batch.mask, mode, token_count=batch.tokens, sequence_count=len(losses))
    mine = (weights * losses).sum() / batch.tokens
    want = core_algos.agg_loss(losses, batch.mask.double(), theirs)
    # verl adds 1e-8 to each length.
    torch.testing.assert_close(mine, want, rtol=1e-7, atol=1e-7)


def test_truncated_importance_weights_are_verls_but_one_at_padding(batch):
    log_ratio = 3 * (batch.logprobs - batch.old_logprobs)
    theirs, _ = compute_rollout_correction_weights(log_ratio, batch.mask.double(), "token", 2.0)
    mine, metrics = truncated_importance_weights(log_ratio, torch.zeros_like(log_ratio), batch.mask, cap=2.0)
    torch.testing.assert_close(mine[batch.mask], theirs[batch.mask], rtol=1e-12, atol=1e-12)
    assert mine[~batch.mask].unique().tolist() == [1.0]
    assert theirs[~batch.mask].unique().tolist() == [0.0]
    assert 0 < metrics["experience/importance_capped_fraction"] < 1
