"""Log-probs and entropy against verl 0.9."""

from __future__ import annotations

import pytest
import torch
from verl.utils import torch_functional as verl_functional

from rlhf_core.numerics.logprobs import entropy_nats, logprobs_from_hidden, token_logprobs


def make_logits(dtype=torch.float64):
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(3, 7, 4, generator=generator, dtype=dtype)
    head = torch.randn(11, 4, generator=generator, dtype=dtype)
    return hidden, head, torch.randint(0, 11, (3, 7), generator=generator)


@pytest.mark.parametrize("theirs", ["logprobs_from_logits_v2", "logprobs_from_logits_naive"])
def test_logprobs_are_verls(theirs):
    hidden, head, ids = make_logits()
    want = getattr(verl_functional, theirs)(hidden @ head.T, ids)
    torch.testing.assert_close(token_logprobs(hidden @ head.T, ids), want, rtol=1e-12, atol=1e-12)
    mine, _ = logprobs_from_hidden(hidden.flatten(0, 1), head, ids.flatten(), chunk_tokens=4)
    torch.testing.assert_close(mine, want.flatten(), rtol=1e-12, atol=1e-12)


def test_of_half_precision_logits_ours_are_of_the_float32_softmax():
    """verl keeps the logits' dtype, so its log-probs have three digits; ours have those of the logits as they are."""
    hidden, head, ids = make_logits(torch.float32)
    logits = (hidden @ head.T).to(torch.bfloat16)
    theirs = verl_functional.logprobs_from_logits_v2(logits, ids)
    exact = torch.log_softmax(logits.double(), dim=-1).gather(-1, ids[..., None])[..., 0]
    mine = token_logprobs(logits, ids)
    assert (mine.dtype, theirs.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-6)
    assert (theirs.double() - exact).abs().max() > 1e-3


def test_entropy_is_verls():
    hidden, head, ids = make_logits()
    want = verl_functional.entropy_from_logits(hidden @ head.T)
    torch.testing.assert_close(entropy_nats(hidden @ head.T), want, rtol=1e-12, atol=1e-12)
    _, mine = logprobs_from_hidden(hidden.flatten(0, 1), head, ids.flatten(), chunk_tokens=4)
    torch.testing.assert_close(mine, want.flatten(), rtol=1e-12, atol=1e-12)


def test_a_token_that_is_ruled_out_adds_no_entropy_here_and_nan_in_verl():
    logits = torch.tensor([[0.0, 0.0, -torch.inf]], dtype=torch.float64)
    assert entropy_nats(logits).item() == pytest.approx(torch.log(torch.tensor(2.0, dtype=torch.float64)).item())
    assert verl_functional.entropy_from_logits(logits).isnan().all()
