"""The error of a policy whose logits are no numbers any more (N05)."""

from __future__ import annotations

from rlhf_core.errors import NumericsError


class NonFiniteLogits(NumericsError):
    """Logits became NaN or infinite while a response was sampled.

    Attributes:
        request_index: place of the request in the list that the engine was given.
        token_index: response tokens sampled before it happened.
    """

    def __init__(self, request_index: int, token_index: int) -> None:
        self.request_index = request_index
        self.token_index = token_index
        super().__init__(
            f"the policy's logits are NaN or infinite at request {request_index}, response token {token_index}. Its "
            "weights are damaged, mostly by too high a learning rate; the run goes back to the last good checkpoint."
        )
