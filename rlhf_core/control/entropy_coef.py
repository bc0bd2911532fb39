"""The weight of the entropy bonus (P4)."""

from __future__ import annotations

import math

from rlhf_core.errors import ConfigError

_FACTOR = 0.01


def entropy_coef_rule(vocab_size: int) -> float:
    """Return `0.01·log(vocab_size)`: 0.108 for 49 152 tokens.

    The greatest possible entropy is log(vocab_size) too, so the largest bonus is a hundredth of its square.

    Raises:
        ConfigError: the vocabulary has no choice, so there is no entropy to reward.
    """
    if vocab_size < 2:
        raise ConfigError(f"vocab_size={vocab_size} has no entropy; take the size from the policy's tokenizer.")
    return _FACTOR * math.log(vocab_size)
