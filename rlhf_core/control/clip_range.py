"""The clip range ε as a function of KL (P2); a fixed ε is a plain number and needs no policy."""

from __future__ import annotations

import math
from typing import Literal

from rlhf_core.errors import NumericsError

BASE_CLIP_RANGE = 0.2
CENTRE_NATS = 0.01
"""KL per token at which ε is the base."""


def adaptive_clip_range(kl_nats: float, direction: Literal["narrow", "widen"] = "narrow") -> float:
    """Return `0.2·(1 + tanh(±(kl - 0.01)))`, in (0, 0.4]: minus for `narrow`, plus for `widen`.

    `narrow` takes smaller steps the further the policy has moved, `widen` larger ones. The KL is in nats, where tanh
    is almost linear: at 0.11 nats ε is 0.18 and 0.22. Computed as `0.4 / (1 + exp(∓2·(kl - 0.01)))`, the same number,
    which does not round to 0 as tanh rounds to 1.

    Args:
        kl_nats: mean KL per token of the last batch.
        direction: see above.

    Raises:
        NumericsError: the KL is NaN or infinite.
    """
    if not math.isfinite(kl_nats):
        raise NumericsError(f"the batch's KL is {kl_nats}, so no clip_range follows from it; look at the update.")
    shift = kl_nats - CENTRE_NATS
    signed = -shift if direction == "narrow" else shift
    return 2 * BASE_CLIP_RANGE / (1 + math.exp(min(-2 * signed, 700.0)))
