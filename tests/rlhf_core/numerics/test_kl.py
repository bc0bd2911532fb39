from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.errors import ConfigError
from rlhf_core.numerics import head_matmul
from rlhf_core.numerics.kl import compare_with_reference, exact_kl_from_hidden, kl_k1, kl_k2, kl_k3

weights = st.lists(st.tuples(st.floats(0.05, 1), st.floats(0.05, 1)), min_size=2, max_size=6)


def models(tokens=6, vocab=9):
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    ids = torch.randint(0, vocab, (tokens,), generator=generator)
    return draw(tokens, 4), draw(tokens, 3), (draw(vocab, 4), draw(vocab, 3)), ids


def test_case_N09_k3_of_a_log_ratio_of_minus_five_is_not_clamped():
    assert kl_k3(torch.tensor(-5.0)).item() == pytest.approx(142.4, abs=0.02)
    assert kl_k3(torch.tensor(-5.0)).item() == pytest.approx(math.exp(5) - 1 - 5, rel=1e-6)


@given(weights)
def test_k1_and_k3_are_unbiased_under_the_policy(pairs):
    policy = [p / sum(p for p, _ in pairs) for p, _ in pairs]
    reference = [q / sum(q for _, q in pairs) for _, q in pairs]
    log_ratio = torch.tensor([math.log(p / q) for p, q in zip(policy, reference, strict=True)], dtype=torch.float64)
    exact = sum(p * math.log(p / q) for p, q in zip(policy, reference, strict=True))
    probs = torch.tensor(policy, dtype=torch.float64)
    for estimator in (kl_k1, kl_k3):
        torch.testing.assert_close((probs * estimator(log_ratio)).sum().item(), exact, rtol=1e-9, atol=1e-12)


@given(st.floats(-20, 20))
def test_k2_and_k3_are_never_negative_and_agree_near_zero(log_ratio):
    x = torch.tensor(log_ratio, dtype=torch.float64)
    assert kl_k2(x) >= 0
    assert kl_k3(x) >= 0
    torch.testing.assert_close(kl_k3(x * 1e-4), kl_k2(x * 1e-4), rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize("chunk_tokens", [1, 4, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_comparison_matches_torch_distributions_whatever_the_chunks(chunk_tokens, temperature, monkeypatch):
    monkeypatch.setattr(head_matmul, "_BLOCK_ELEMENTS", 18)
    hidden, ref_hidden, heads, ids = models()
    policy = torch.distributions.Categorical(logits=hidden @ heads[0].T / temperature)
    reference = torch.distributions.Categorical(logits=ref_hidden @ heads[1].T / temperature)
    options = {"temperature": temperature, "chunk_tokens": chunk_tokens}
    got = compare_with_reference(hidden, ref_hidden, heads, ids, **options)
    torch.testing.assert_close(got.logprobs, policy.log_prob(ids))
    torch.testing.assert_close(got.ref_logprobs, reference.log_prob(ids))
    torch.testing.assert_close(got.entropy_nats, policy.entropy())
    want = torch.distributions.kl_divergence(policy, reference)
    torch.testing.assert_close(got.kl_exact_nats, want)
    torch.testing.assert_close(exact_kl_from_hidden(hidden, heads[0], ref_hidden, heads[1], **options), want)


def test_a_policy_has_no_kl_to_itself_and_gets_no_gradient():
    hidden, _, heads, ids = models()
    hidden.requires_grad_()
    got = compare_with_reference(hidden.float(), hidden.float(), (heads[0].float(),) * 2, ids)
    assert got.kl_exact_nats.tolist() == [0.0] * len(ids)
    assert not got.logprobs.requires_grad


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_under_autocast_a_comparison_is_float32_and_near_that_of_float32(monkeypatch, has_bfloat16):
    monkeypatch.setattr(head_matmul, "cpu_multiplies_bfloat16", lambda: has_bfloat16)
    hidden, ref_hidden, heads, ids = models()
    single = (hidden.float(), ref_hidden.float(), (heads[0].float(), heads[1].float()), ids)
    want = compare_with_reference(*single)
    with torch.autocast("cpu", torch.bfloat16):
        got = compare_with_reference(*single)
    assert got.kl_exact_nats.dtype == torch.float32
    torch.testing.assert_close(got.kl_exact_nats, want.kl_exact_nats, rtol=5e-2, atol=5e-2)


def test_a_temperature_of_zero_is_refused():
    hidden, ref_hidden, heads, ids = models()
    with pytest.raises(ConfigError, match="temperature=0"):
        compare_with_reference(hidden, ref_hidden, heads, ids, temperature=0)
