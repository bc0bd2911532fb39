from __future__ import annotations

import pytest
import torch

from rlhf_core.numerics.ptx_loss import ptx_loss


def test_the_loss_is_the_cross_entropy_of_torch():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 9, generator=generator, dtype=torch.float64)
    ids = torch.randint(0, 9, (6,), generator=generator)
    logprobs = torch.log_softmax(logits, -1).gather(1, ids[:, None])[:, 0]
    loss, metrics = ptx_loss(logprobs, torch.ones(6, dtype=torch.bool), 6)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits, ids))
    assert metrics["update/ptx_loss"].item() == loss.item()


def test_padding_is_ignored_and_micro_batches_add_up():
    logprobs = torch.tensor([-1.0, float("nan"), -3.0], requires_grad=True)
    loss, _ = ptx_loss(logprobs, torch.tensor([True, False, True]), 4)
    loss.backward()
    assert loss.item() == pytest.approx(1.0)
    assert logprobs.grad.tolist() == [-0.25, 0.0, -0.25]
