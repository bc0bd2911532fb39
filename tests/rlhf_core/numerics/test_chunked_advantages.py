from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.errors import ConfigError, NumericsError
from rlhf_core.numerics.advantages import generalized_advantages
from rlhf_core.numerics.chunked_advantages import GaeDecay, chunked_advantages
from rlhf_core.numerics.masking import mask_from_lengths

unit = st.floats(0.0, 1.0)
NAN = float("nan")


def experience(lengths, *, seed=0, dtype=torch.float64):
    """Rewards, values, bootstrap values and mask; padding holds NaN."""
    generator = torch.Generator().manual_seed(seed)
    mask = mask_from_lengths(torch.tensor(lengths, dtype=torch.int64), max(lengths, default=0))
    rewards, values = torch.randn(2, *mask.shape, generator=generator, dtype=dtype).masked_fill(~mask, NAN)
    return rewards, values, torch.randn(len(lengths), generator=generator, dtype=dtype), mask


@given(
    lengths=st.lists(st.integers(0, 17), min_size=1, max_size=4),
    chunk_tokens=st.integers(1, 20),
    discount=unit,
    gae_lambda=unit | st.lists(unit, min_size=4, max_size=4),
)
def test_chunked_advantages_are_the_whole_ones_for_every_chunk_size(lengths, chunk_tokens, discount, gae_lambda):
    if isinstance(gae_lambda, list):
        gae_lambda = torch.tensor(gae_lambda[: len(lengths)], dtype=torch.float64)
    tensors = experience(lengths)
    whole = generalized_advantages(*tensors, discount=discount, gae_lambda=gae_lambda)
    chunked = chunked_advantages(*tensors, decay=GaeDecay(discount, gae_lambda), chunk_tokens=chunk_tokens)
    for got, want in zip(chunked, whole, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_a_long_response_in_float32_agrees_to_its_rounding():
    tensors = experience([2000, 1203], dtype=torch.float32)
    whole = generalized_advantages(*tensors, discount=1.0, gae_lambda=0.95)
    chunked = chunked_advantages(*tensors, decay=GaeDecay(1.0, 0.95))
    for got, want in zip(chunked, whole, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_chunks_on_their_own_lose_what_follows_them():
    rewards, values, bootstrap, mask = experience([6])
    whole, _ = generalized_advantages(rewards, values, bootstrap, mask, discount=1.0, gae_lambda=0.95)
    # Even with the critic's value of the next chunk's first token as bootstrap, the first chunk is wrong.
    naive = [
        generalized_advantages(rewards[:, part], values[:, part], after, mask[:, part], discount=1.0, gae_lambda=0.95)
        for part, after in ((slice(0, 3), values[:, 3]), (slice(3, 6), bootstrap))
    ]
    torch.testing.assert_close(naive[1][0], whole[:, 3:])
    assert (naive[0][0] - whole[:, :3]).abs().min() > 0.01
    chunked, _ = chunked_advantages(rewards, values, bootstrap, mask, decay=GaeDecay(1.0, 0.95), chunk_tokens=3)
    torch.testing.assert_close(chunked, whole, rtol=1e-12, atol=1e-12)


def test_an_empty_batch_gives_an_empty_result():
    for lengths in ([], [0, 0]):
        tensors = experience(lengths)
        assert chunked_advantages(*tensors, decay=GaeDecay(1.0, 0.95))[0].shape == tensors[-1].shape


def test_a_chunk_without_tokens_and_a_reward_that_is_no_number_are_refused():
    rewards, values, bootstrap, mask = experience([2])
    with pytest.raises(ConfigError, match="chunk_tokens=0"):
        chunked_advantages(rewards, values, bootstrap, mask, decay=GaeDecay(1.0, 0.95), chunk_tokens=0)
    with pytest.raises(NumericsError, match="rewards"):
        chunked_advantages(rewards * NAN, values, bootstrap, mask, decay=GaeDecay(1.0, 0.95))
