"""KL divergence of the policy from the reference: sampled estimators, and exact over the vocabulary.

Source of k1, k2, k3: Schulman 2020, "Approximating KL Divergence". Tokens are sampled from the policy, and
`log_ratio = logprobs - ref_logprobs` throughout. To estimate KL(old‖new), pass `old_logprobs - logprobs`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rlhf_core.numerics.head_matmul import cache_blocks, chunks, matmul_dtype, softmax_dtype
from rlhf_core.numerics.logprobs import require_temperature


def kl_k1(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return `log_ratio`: unbiased, noisy, negative for half of the tokens; nats."""
    return log_ratio


def kl_k2(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return `log_ratio² / 2`: biased, never negative; nats."""
    return log_ratio.square() / 2


def kl_k3(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return `exp(-log_ratio) - 1 + log_ratio`: unbiased, never negative, never clamped (N09); nats."""
    return torch.expm1(-log_ratio) + log_ratio


@dataclass(frozen=True)
class ReferenceComparison:
    """What policy and reference say of the same tokens; all `[tokens]`, nats, float32 or wider."""

    logprobs: Tensor
    ref_logprobs: Tensor
    entropy_nats: Tensor
    """Of the policy."""
    kl_exact_nats: Tensor
    """KL(policy‖reference) over the whole vocabulary."""


@torch.no_grad()
def compare_with_reference(
    hidden: Float[Tensor, "tokens hidden"],
    ref_hidden: Float[Tensor, "tokens ref_hidden"],
    heads: tuple[Float[Tensor, "vocab hidden"], Float[Tensor, "vocab ref_hidden"]],
    ids: Int[Tensor, " tokens"],
    *,
    temperature: float = 1.0,
    chunk_tokens: int = 256,
) -> ReferenceComparison:
    """Return log-probs under both models, entropy and exact KL from one product with each head.

    No gradient. Memory: two buffers of `chunk_tokens` × vocabulary, whatever the number of tokens.

    Args:
        hidden: the policy's last hidden states at the positions that predict `ids`.
        ref_hidden: the reference's.
        heads: language-model heads of policy and reference.
        ids: sampled tokens.
        temperature: the sampling temperature, of both models.
        chunk_tokens: tokens whose logits are computed at once.

    Raises:
        ConfigError: the temperature is not above 0.
    """
    require_temperature(temperature)
    dtype = matmul_dtype(hidden, heads[0])
    models = [(states.to(dtype), head.to(dtype)) for states, head in zip((hidden, ref_hidden), heads, strict=True)]
    result = torch.empty(4, len(ids), dtype=softmax_dtype(dtype), device=hidden.device)
    with torch.autocast(hidden.device.type, enabled=False):
        for chunk in chunks(len(ids), chunk_tokens):
            logits, ref_logits = (states[chunk] @ head.T for states, head in models)
            for block in cache_blocks(*logits.shape):
                rows = slice(chunk.start + block.start, chunk.start + block.stop)
                policy = torch.log_softmax(logits[block].to(result.dtype) / temperature, dim=1)
                reference = torch.log_softmax(ref_logits[block].to(result.dtype) / temperature, dim=1)
                chosen = ids[rows, None]
                probs = policy.exp()
                result[0, rows] = policy.gather(1, chosen).squeeze(1)
                result[1, rows] = reference.gather(1, chosen).squeeze(1)
                result[2, rows] = -_row_dots(probs, policy)
                result[3, rows] = _row_dots(probs, policy - reference)
    # A divergence is never negative; float32 rounding alone would make it so.
    return ReferenceComparison(result[0], result[1], result[2], result[3].clamp(min=0.0))


def exact_kl_from_hidden(
    hidden: Float[Tensor, "tokens hidden"],
    head_weight: Float[Tensor, "vocab hidden"],
    ref_hidden: Float[Tensor, "tokens ref_hidden"],
    ref_head_weight: Float[Tensor, "vocab ref_hidden"],
    *,
    temperature: float = 1.0,
    chunk_tokens: int = 256,
) -> Float[Tensor, " tokens"]:
    """Return KL(policy‖reference) per token over the whole vocabulary, in nats; see `compare_with_reference`."""
    any_ids = torch.zeros(len(hidden), dtype=torch.long, device=hidden.device)
    heads = (head_weight, ref_head_weight)
    return compare_with_reference(
        hidden, ref_hidden, heads, any_ids, temperature=temperature, chunk_tokens=chunk_tokens
    ).kl_exact_nats


def _row_dots(left: Tensor, right: Tensor) -> Tensor:
    return torch.bmm(left[:, None, :], right[:, :, None]).reshape(-1)
