"""Log-probabilities and entropy of sampled tokens, from logits or straight from hidden states.

From hidden states the head is multiplied in chunks, and the forward pass keeps `softmax - onehot` instead of logits and
log-probs: one buffer of tokens × vocabulary, from which the backward pass is two matrix products.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlhf_core.errors import ConfigError
from rlhf_core.numerics.head_matmul import cache_blocks, chunks, matmul_dtype, softmax_dtype


def token_logprobs(
    logits: Float[Tensor, "batch tokens vocab"], ids: Int[Tensor, "batch tokens"], temperature: float = 1.0
) -> Float[Tensor, "batch tokens"]:
    """Return the log-probability in nats of each id under `softmax(logits / temperature)`, in float32 or wider."""
    scaled = logits.to(softmax_dtype(logits.dtype)) / require_temperature(temperature)
    return torch.log_softmax(scaled, dim=-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def entropy_nats(logits: Float[Tensor, "*shape vocab"], temperature: float = 1.0) -> Float[Tensor, "*shape"]:
    """Return the entropy of `softmax(logits / temperature)`; a logit of -inf adds 0, as 0·log 0 = 0 (N12)."""
    scaled = logits.to(softmax_dtype(logits.dtype)) / require_temperature(temperature)
    logprobs = torch.log_softmax(scaled, dim=-1)
    return -(logprobs.exp() * logprobs.masked_fill(logprobs == -torch.inf, 0.0)).sum(dim=-1)


def logprobs_from_hidden(
    hidden: Float[Tensor, "tokens hidden"],
    head_weight: Float[Tensor, "vocab hidden"],
    ids: Int[Tensor, " tokens"],
    *,
    temperature: float = 1.0,
    chunk_tokens: int = 256,
    with_entropy: bool = True,
) -> tuple[Float[Tensor, " tokens"], Float[Tensor, " tokens"]]:
    """Return `(logprobs, entropy)` in nats of the head's distribution, float32 whatever the inputs' half precision.

    Both are differentiable to `hidden` and `head_weight`; entropy costs backward time only where its gradient is asked
    for. Memory: one buffer of tokens × vocabulary where a gradient is needed, of `chunk_tokens` × vocabulary elsewhere.
    Under autocast the product is in autocast's dtype (see `matmul_dtype`), softmax in float32.

    Args:
        hidden: last hidden states at the positions that predict `ids`.
        head_weight: the language-model head, without bias.
        ids: sampled tokens.
        temperature: the sampling temperature (K01).
        chunk_tokens: tokens whose logits are computed at once.
        with_entropy: False skips the entropy and returns zeros for it.

    Raises:
        ConfigError: the temperature is not above 0.
    """
    require_temperature(temperature)
    dtype = matmul_dtype(hidden, head_weight)
    options = (temperature, chunk_tokens, with_entropy)
    if torch.is_grad_enabled() and (hidden.requires_grad or head_weight.requires_grad):
        return cast("tuple[Tensor, Tensor]", _HeadLogprobs.apply(hidden.to(dtype), head_weight.to(dtype), ids, options))
    with torch.autocast(hidden.device.type, enabled=False):
        logprobs, entropy, _ = _chunked_logprobs(hidden.to(dtype), head_weight.to(dtype), ids, options, keep=False)
    return logprobs, entropy


def require_temperature(temperature: float) -> float:
    """Return the temperature, or raise ConfigError where it is not above 0."""
    if not temperature > 0:
        raise ConfigError(
            f"temperature={temperature} has no softmax. Set rollout.temperature above 0; for greedy text sample with "
            "a small one such as 0.01."
        )
    return temperature


_Options = tuple[float, int, bool]
"""Temperature, tokens of a chunk, whether entropy is wanted."""


def _chunked_logprobs(
    hidden: Tensor, head_weight: Tensor, ids: Tensor, options: _Options, *, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return logprobs, entropy and, with `keep`, `softmax - onehot` of all tokens."""
    temperature, chunk_tokens, with_entropy = options
    tokens, vocab = len(hidden), len(head_weight)
    buffer = hidden.new_empty(tokens if keep else min(tokens, chunk_tokens), vocab)
    logprobs = torch.empty(tokens, dtype=softmax_dtype(hidden.dtype), device=hidden.device)
    entropy = torch.zeros_like(logprobs)
    for chunk in chunks(tokens, chunk_tokens):
        logits = buffer[chunk] if keep else buffer[: chunk.stop - chunk.start]
        torch.mm(hidden[chunk], head_weight.T, out=logits)
        for block in cache_blocks(len(logits), vocab):
            rows = slice(chunk.start + block.start, chunk.start + block.stop)
            block_logprobs = torch.log_softmax(_scaled(logits[block], temperature), dim=1)
            chosen = ids[rows, None]
            logprobs[rows] = block_logprobs.gather(1, chosen).squeeze(1)
            if not (keep or with_entropy):
                continue
            probs = block_logprobs.exp()
            if with_entropy:
                entropy[rows] = -torch.bmm(probs[:, None, :], block_logprobs[:, :, None]).reshape(-1)
            if keep:
                logits[block] = probs.scatter_add_(1, chosen, probs.new_full(chosen.shape, -1.0))
    return logprobs, entropy, buffer


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    """Return the logits over the temperature in softmax's dtype; may write on `logits`, which is scratch."""
    wide = logits.to(softmax_dtype(logits.dtype))
    return wide if temperature == 1.0 else wide.div_(temperature)


class _HeadLogprobs(torch.autograd.Function):
    """Log-probs and entropy whose gradient to the logits was prepared by the forward pass."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head_weight: Tensor, ids: Tensor, options: _Options) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        with torch.autocast(hidden.device.type, enabled=False):
            logprobs, entropy, residual = _chunked_logprobs(hidden, head_weight, ids, options, keep=True)
        ctx.save_for_backward(hidden, head_weight, ids, residual, entropy)
        ctx.options = options
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  torch's own signature is variadic
        ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        """d logprob / d logits = (onehot - softmax) / temperature: a factor per row, so it is put on the small side."""
        hidden, head_weight, ids, residual, entropy = ctx.saved_tensors
        temperature, chunk_tokens, with_entropy = ctx.options
        grad_hidden = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(head_weight) if ctx.needs_input_grad[1] else None
        with torch.autocast(hidden.device.type, enabled=False):
            if grad_logprobs is not None:
                scale = (-grad_logprobs / temperature)[:, None].to(hidden.dtype)
                if grad_hidden is not None:
                    torch.mm(residual, head_weight, out=grad_hidden).mul_(scale)
                if grad_weight is not None:
                    torch.mm(residual.T, scale * hidden, out=grad_weight)
            if grad_entropy is not None and with_entropy:
                scale = (-grad_entropy / temperature)[:, None]
                for chunk in chunks(len(ids), chunk_tokens):
                    logits_grad = _entropy_gradient(residual[chunk], ids[chunk], entropy[chunk]) * scale[chunk]
                    if grad_hidden is not None:
                        grad_hidden[chunk].addmm_(logits_grad.to(hidden.dtype), head_weight)
                    if grad_weight is not None:
                        grad_weight.addmm_(logits_grad.to(hidden.dtype).T, hidden[chunk])
        return grad_hidden, grad_weight, None, None


def _entropy_gradient(residual: Tensor, ids: Tensor, entropy: Tensor) -> Tensor:
    """Return `p (log p + H)`, minus the gradient of the entropy to the logits, from `softmax - onehot`."""
    probs = residual.to(entropy.dtype)
    probs = probs.scatter_add(1, ids[:, None], probs.new_ones(len(ids), 1)).clamp_(min=0.0)
    return torch.xlogy(probs, probs) + probs * entropy[:, None]
