"""GRPO, RLOO and REINFORCE++ with a group baseline against verl 0.9 and torchrl 0.14."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torchrl.objectives.llm import MCAdvantage
from verl.trainer.ppo import core_algos

from rlhf_core.numerics.group_advantages import group_baseline, grpo_advantages, rloo_advantages
from rlhf_core.numerics.whitening import whiten


def everyone(batch):
    return torch.ones_like(batch.group_ids, dtype=torch.bool)


def on_last_token(batch, scores=None):
    """Token rewards that hold nothing but the score on the last token, as verl takes them."""
    scores = batch.scores if scores is None else scores
    return torch.zeros_like(batch.rewards).scatter(1, batch.last[:, None], scores[:, None])


def by_row(advantages):
    """The one number that verl puts on all tokens of a response; every response has a first token."""
    return advantages[:, 0]


def group_size(batch):
    return (batch.group_ids[:, None] == batch.group_ids[None, :]).sum(dim=1)


def spread(batch):
    """Population deviation of each row's group, by torch itself."""
    return torch.stack([batch.scores[batch.group_ids == g].std(correction=0) for g in batch.group_ids])


def verls(name, batch, **options):
    rewards, mask = on_last_token(batch), batch.mask.double()
    advantages, _ = getattr(core_algos, f"compute_{name}_outcome_advantage")(
        rewards, mask, batch.group_ids.numpy(), **options
    )
    return by_row(advantages)


def test_grpo_is_verls_with_the_populations_deviation_for_the_samples(batch):
    """verl divides by `std·sqrt(n/(n-1)) + 1e-6`, we by `max(std, 1e-4)`; both pass a group of more than one."""
    mine = grpo_advantages(batch.scores, batch.group_ids, everyone(batch))
    n, std = group_size(batch), spread(batch)
    many = n > 1
    want = mine * std / (std * (n / (n - 1).clamp(min=1)).sqrt() + 1e-6)
    torch.testing.assert_close(want[many], verls("grpo", batch)[many], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(want[many], verls("grpo_vectorized", batch)[many].double(), rtol=2e-5, atol=1e-6)


def test_without_the_deviation_grpo_is_verls_exactly(batch):
    mine = grpo_advantages(batch.scores, batch.group_ids, everyone(batch), scale="none")
    many = group_size(batch) > 1
    theirs = verls("grpo", batch, norm_adv_by_std_in_grpo=False)
    torch.testing.assert_close(mine[many], theirs[many], rtol=1e-12, atol=1e-12)


def test_grpo_is_torchrls_times_the_root_of_n_over_n_minus_one(batch):
    group, n = batch.scores[batch.group_ids == 4], 3
    transform = MCAdvantage(grpo_size=n, prompt_key="group", trajectory_return="sum")
    outputs = []
    for score in group:
        step = {"reward": score.reshape(1, 1), "done": torch.ones(1, 1, dtype=torch.bool)}
        response = {"group": torch.full((1,), 4), "next": TensorDict(step, batch_size=[1])}
        outputs.append(transform.inv(TensorDict(response, batch_size=[1])))
    assert outputs[:-1] == [None, None]
    mine = grpo_advantages(batch.scores, batch.group_ids, everyone(batch))[batch.group_ids == 4]
    torch.testing.assert_close(mine, outputs[-1]["advantage"][:, 0] * (n / (n - 1)) ** 0.5, rtol=1e-11, atol=1e-11)


def test_a_group_of_one_teaches_nothing_here_and_its_bare_score_in_verl(batch):
    alone = group_size(batch) == 1
    for mine in (grpo_advantages, rloo_advantages, group_baseline):
        assert mine(batch.scores, batch.group_ids, everyone(batch))[alone].tolist() == [0.0]
    torch.testing.assert_close(verls("grpo", batch)[alone], batch.scores[alone], rtol=2e-6, atol=0)
    assert verls("rloo", batch)[alone].equal(batch.scores[alone])
    # verl's two RLOOs differ from one another here.
    assert verls("rloo_vectorized", batch)[alone].tolist() == [0.0]


def test_equal_scores_give_exactly_zero_where_rounding_gives_verl_noise():
    """0.1 + 0.2 and 0.3 differ by one rounding: verl divides it by 1e-6, here the floor is 1e-4 (N02)."""
    scores, group_ids = torch.tensor([0.1 + 0.2, 0.3, 0.3], dtype=torch.float64), torch.zeros(3, dtype=torch.long)
    rewards, mask = scores[:, None].clone(), torch.ones(3, 1, dtype=torch.float64)
    theirs, _ = core_algos.compute_grpo_outcome_advantage(rewards, mask, group_ids.numpy())
    mine = grpo_advantages(scores, group_ids, group_ids == 0)
    assert mine.abs().max() < theirs.abs().max() / 50
    assert grpo_advantages(scores[1:], group_ids[1:], group_ids[1:] == 0).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["rloo", "rloo_vectorized"])
def test_rloo_is_verls(batch, name):
    mine = rloo_advantages(batch.scores, batch.group_ids, everyone(batch))
    many = group_size(batch) > 1
    torch.testing.assert_close(mine[many], verls(name, batch)[many], rtol=1e-12, atol=1e-12)


def test_the_group_baseline_whitened_over_tokens_is_verls_reinforce_plus_plus_baseline(batch):
    """Of groups of more than one; over the sample's deviation, as all of verl's whitening."""
    many = group_size(batch) > 1
    mask = batch.mask & many[:, None]
    theirs, _ = core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(
        on_last_token(batch)[many], mask[many].double(), batch.group_ids[many].numpy()
    )
    mine = group_baseline(batch.scores, batch.group_ids, everyone(batch))[:, None].expand_as(batch.rewards)
    tokens = int(mask.sum())
    sample = whiten(mine, mask) * ((tokens - 1) / tokens) ** 0.5
    torch.testing.assert_close(sample[many], theirs, rtol=1e-6, atol=1e-6)
