"""GAE, rewards to go and whitening against torchrl 0.14 and verl 0.9."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torchrl.objectives.value.functional import (
    generalized_advantage_estimate,
    reward2go,
    vec_generalized_advantage_estimate,
)
from verl.trainer.ppo import core_algos
from verl.utils import torch_functional as verl_functional

from rlhf_core.numerics.advantages import generalized_advantages
from rlhf_core.numerics.chunked_advantages import GaeDecay, chunked_advantages
from rlhf_core.numerics.whitening import scale_to_unit_variance, whiten

DECAYS = [(1.0, 0.95), (0.9, 0.8), (1.0, 1.0), (0.99, 0.0)]
TORCHRLS = [(generalized_advantage_estimate, decay) for decay in DECAYS] + [
    # At λ = 0 torchrl's vectorised form has no power to convolve with and ends in an IndexError.
    (vec_generalized_advantage_estimate, decay)
    for decay in DECAYS
    if decay[1] > 0
]
VERLS_EPSILON = {"rtol": 1e-6, "atol": 1e-6}
"""verl adds 1e-8 to the count and to the variance, we 1e-8 to the deviation: relations hold to about that."""


def ours(batch, bootstrap, discount, gae_lambda):
    return generalized_advantages(
        batch.rewards, batch.values, bootstrap, batch.mask, discount=discount, gae_lambda=gae_lambda
    )


def for_torchrl(batch):
    """Arguments `[batch, time, 1]`: values, next values, rewards, done, terminated.

    A response is an episode. Every one is `done` at its last token; only one that ended by itself is `terminated`
    there, so a cut one takes the next value in.
    """
    is_last = torch.zeros_like(batch.mask).scatter(1, batch.last[:, None], True)
    next_values = batch.values.roll(-1, dims=1).scatter(1, batch.last[:, None], batch.bootstrap[:, None])
    terminated = is_last & (batch.bootstrap == 0)[:, None]
    return [x[..., None] for x in (batch.values, next_values, batch.rewards, is_last, terminated)]


def by_the_last_token(batch, decay):
    """`decay ** (tokens that follow)` at each token."""
    steps = batch.last[:, None] - torch.arange(batch.mask.shape[1])[None, :]
    return decay ** steps.clamp(min=0).double()


@pytest.mark.parametrize(("estimate", "decay"), TORCHRLS)
def test_gae_is_torchrls_with_a_cut_response_done_but_not_terminated(batch, estimate, decay):
    discount, gae_lambda = decay
    theirs, targets = estimate(discount, gae_lambda, *for_torchrl(batch))
    advantages, returns = ours(batch, batch.bootstrap, discount, gae_lambda)
    chunked, _ = chunked_advantages(
        batch.rewards, batch.values, batch.bootstrap, batch.mask, decay=GaeDecay(*decay), chunk_tokens=4
    )
    for mine, other in ((advantages, theirs), (returns, targets), (chunked, theirs)):
        torch.testing.assert_close(mine[batch.mask], other[..., 0][batch.mask], rtol=1e-11, atol=1e-11)


def test_taking_every_end_for_a_termination_would_lose_the_bootstrap(batch):
    values, next_values, rewards, done, _ = for_torchrl(batch)
    theirs, _ = generalized_advantage_estimate(0.9, 0.8, values, next_values, rewards, done, done)
    advantages, _ = ours(batch, batch.bootstrap, 0.9, 0.8)
    lost = by_the_last_token(batch, 0.9 * 0.8) * 0.9 * batch.bootstrap[:, None]
    torch.testing.assert_close((advantages - theirs[..., 0])[batch.mask], lost[batch.mask], rtol=1e-11, atol=1e-11)
    assert lost.abs().max() > 0.01


@pytest.mark.parametrize(("discount", "gae_lambda"), DECAYS)
def test_gae_is_verls_but_for_the_bootstrap_that_verl_does_not_have(batch, discount, gae_lambda):
    _, theirs = core_algos.compute_gae_advantage_return(
        batch.rewards, batch.values, batch.mask.double(), discount, gae_lambda
    )
    _, ended = ours(batch, torch.zeros_like(batch.bootstrap), discount, gae_lambda)
    torch.testing.assert_close(ended[batch.mask], theirs[batch.mask], rtol=1e-12, atol=1e-12)
    _, cut = ours(batch, batch.bootstrap, discount, gae_lambda)
    bootstrapped = by_the_last_token(batch, discount * gae_lambda) * discount * batch.bootstrap[:, None]
    torch.testing.assert_close((cut - theirs)[batch.mask], bootstrapped[batch.mask], rtol=1e-11, atol=1e-11)


def test_verls_gae_comes_whitened_by_the_sample_deviation(batch):
    theirs, _ = core_algos.compute_gae_advantage_return(batch.rewards, batch.values, batch.mask.double(), 0.9, 0.8)
    advantages, _ = ours(batch, torch.zeros_like(batch.bootstrap), 0.9, 0.8)
    mine = whiten(advantages, batch.mask) * ((batch.tokens - 1) / batch.tokens) ** 0.5
    torch.testing.assert_close(mine[batch.mask], theirs[batch.mask], **VERLS_EPSILON)


def test_whitening_is_verls_times_the_root_of_n_over_n_minus_one(batch):
    theirs = verl_functional.masked_whiten(batch.advantages, batch.mask.double())[batch.mask]
    mine = whiten(batch.advantages, batch.mask)[batch.mask]
    torch.testing.assert_close(mine, theirs * (batch.tokens / (batch.tokens - 1)) ** 0.5, **VERLS_EPSILON)
    assert mine.std(correction=0).item() == pytest.approx(1, abs=1e-6)
    assert theirs.std(correction=1).item() == pytest.approx(1, abs=1e-6)


def test_keeping_the_mean_is_two_things_ours_scales_it_verl_adds_it_back_unscaled(batch):
    """Ours divides everything by the deviation; verl's mean stays in the old units beside scaled deviations."""
    kept = batch.advantages[batch.mask]
    theirs = verl_functional.masked_whiten(batch.advantages, batch.mask.double(), shift_mean=False)[batch.mask]
    mine = scale_to_unit_variance(batch.advantages, batch.mask)[batch.mask]
    torch.testing.assert_close(theirs - kept.mean(), (kept - kept.mean()) / kept.std(correction=1), **VERLS_EPSILON)
    torch.testing.assert_close(mine - kept.mean() / kept.std(correction=0), whiten(kept, kept == kept), **VERLS_EPSILON)


def test_one_token_alone_is_whitened_to_zero_where_verl_refuses():
    one, mask = torch.tensor([[3.0, 5.0]]), torch.tensor([[True, False]])
    assert whiten(one, mask).tolist() == [[0.0, 0.0]]
    with pytest.raises(ValueError, match="sum of the mask is one"):
        verl_functional.masked_whiten(one, mask.float())


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_rewards_to_go_are_torchrls_and_verls_reinforce_plus_plus(batch, discount):
    nothing = torch.zeros_like(batch.values)
    mine, _ = generalized_advantages(
        batch.rewards, nothing, nothing[:, 0], batch.mask, discount=discount, gae_lambda=1.0
    )
    whitened, to_go = core_algos.compute_reinforce_plus_plus_outcome_advantage(
        batch.rewards, batch.mask.double(), config=SimpleNamespace(gamma=discount)
    )
    torch.testing.assert_close(mine[batch.mask], to_go[batch.mask], rtol=1e-12, atol=1e-12)
    sample = whiten(mine, batch.mask) * ((batch.tokens - 1) / batch.tokens) ** 0.5
    torch.testing.assert_close(sample, whitened, **VERLS_EPSILON)
    for row, (length, rewards) in enumerate(zip(batch.mask.sum(dim=1).tolist(), batch.rewards, strict=True)):
        done = torch.arange(length) == length - 1
        # torchrl cuts the sum where γ^k falls below 1e-7; no response here is so long.
        theirs = reward2go(rewards[:length, None], done[:, None], discount)[:, 0]
        torch.testing.assert_close(mine[row, :length], theirs, rtol=1e-11, atol=1e-11)
