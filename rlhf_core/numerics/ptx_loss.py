"""The pretraining loss that PPO-ptx adds (P3)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.numerics.masking import masked_sum


def ptx_loss(
    logprobs: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], token_count: int | float
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """Return `(loss, metrics)`: the cross-entropy of general text in nats, before its weight `ptx_coef`.

    Source: Ouyang et al. 2022, arXiv:2203.02155, eq. 2. Summed here and divided by the `token_count` of all
    documents of the optimizer step, so that micro-batches add up.
    """
    loss = -masked_sum(logprobs, mask) / token_count
    return loss, {"update/ptx_loss": loss.detach().to(torch.float64)}
