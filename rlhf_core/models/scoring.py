"""Policy and critic as modules whose forward pass is what training asks of them: numbers for a pack's targets.

An engine that shards parameters gathers them around a module's forward and backward pass. So the head's product, which
is made apart from the model's own forward (for response positions alone, in pieces), stands inside one.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf_core.models.heads import ValueModel
from rlhf_core.models.packed_attention import body_hidden
from rlhf_core.models.precision import Autocast, autocast_context
from rlhf_core.numerics.logprobs import logprobs_from_hidden


class PackedTokens(Protocol):
    """What the modules read of a pack, see `engines.packing.Pack`."""

    @property
    def ids(self) -> Tensor: ...
    @property
    def positions(self) -> Tensor: ...
    @property
    def lengths(self) -> tuple[int, ...]: ...
    @property
    def predictors(self) -> Tensor: ...
    @property
    def targets(self) -> Tensor: ...


class PolicyScorer(nn.Module):
    """`(logprobs, entropy)` of a pack's targets, `[targets]` float32, nats."""

    def __init__(self, policy: PreTrainedModel, autocast: Autocast) -> None:
        super().__init__()
        self.policy = policy
        self.autocast: Autocast = autocast

    def forward(self, pack: PackedTokens, temperature: float) -> tuple[Tensor, Tensor]:
        with autocast_context(pack.ids.device, self.autocast):
            hidden = body_hidden(model_body(self.policy), pack.ids, pack.positions, pack.lengths)
            return logprobs_from_hidden(
                hidden[pack.predictors], model_head(self.policy), pack.targets, temperature=temperature
            )


class ValueScorer(nn.Module):
    """The critic's value after each token of a pack, `[tokens]`, in the critic's own units."""

    def __init__(self, critic: ValueModel, autocast: Autocast) -> None:
        super().__init__()
        self.critic = critic
        self.autocast: Autocast = autocast

    def forward(self, pack: PackedTokens) -> Float[Tensor, " tokens"]:
        with autocast_context(pack.ids.device, self.autocast):
            hidden = body_hidden(self.critic.body, pack.ids, pack.positions, pack.lengths)
        return self.critic.values(hidden, pack.ids, pack.lengths)


def model_body(model: PreTrainedModel) -> Any:
    """The model without its head."""
    return model.base_model


def model_head(model: PreTrainedModel) -> Tensor:
    """Weight of the language-model head, `[vocab, hidden]`."""
    return cast(Tensor, cast(Any, model.get_output_embeddings()).weight)


@torch.no_grad()
def micro_inference(model: nn.Module) -> list[float]:
    """Log-probs in nats that the model gives to each next token of a fixed token sequence (F2)."""
    device = next(model.parameters()).device
    config: Any = model.config
    ids = torch.tensor(probe_ids(int(config.vocab_size)), device=device)
    output: Any = model(input_ids=ids[None, :-1])
    logprobs: Tensor = torch.log_softmax(output.logits[0].float(), dim=-1)
    return logprobs.gather(1, ids[1:, None])[:, 0].tolist()


def probe_ids(vocabulary: int) -> list[int]:
    """The fixed token sequence of the micro-inference, for a vocabulary of that many tokens."""
    return [(place * 7919 + 11) % vocabulary for place in range(_PROBE_TOKENS + 1)]


_PROBE_TOKENS = 16
