"""The length limit of responses, lowered while memory is scarce and restored step by step (F4)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlhf_core.config.run import RunConfig
from rlhf_core.errors import ConfigError, NumericsError

_LEAST = 16


class MaxNewTokens:
    """`value` is the limit in use: the configured one times `shrink` for each cut in force, but not below the floor.

    What is stored is the number of cuts, so that restoring gives exactly the limits that were there on the way down,
    and a limit that was configured anew holds at once.
    """

    def __init__(
        self, configured: int, *, floor: int = _LEAST, high_water: float = 0.85, shrink: float = 0.75, cuts: int = 0
    ) -> None:
        """Start with `cuts` in force.

        Args:
            configured: the greatest limit.
            floor: the least one; 16 at least, and never more than the configured one.
            high_water: share of memory above which a cut is made.
            shrink: factor of a cut, in (0, 1).
            cuts: those made and not taken back.

        Raises:
            ConfigError: a factor is outside its range, or a number is negative.
        """
        if not 0 < shrink < 1 or not 0 < high_water <= 1 or configured < 1 or cuts < 0:
            raise ConfigError(
                f"max_new_tokens={configured}, memory.shrink={shrink}, memory.high_water={high_water}, cuts={cuts}: "
                "set shrink within (0, 1), high_water within (0, 1], and a limit of 1 token or more."
            )
        self.configured = configured
        self.floor = min(configured, max(_LEAST, floor))
        self._high_water, self._shrink, self._cuts = high_water, shrink, cuts

    @property
    def value(self) -> int:
        return max(self.floor, math.floor(self.configured * self._shrink**self._cuts))

    def observe(self, use: float) -> int:
        """Take the share of memory in use and return the limit for the next iteration.

        At the floor no further cut is counted, so the first calm iteration already restores.

        Raises:
            NumericsError: the share is negative or not finite.
        """
        if not 0 <= use < math.inf:
            raise NumericsError(f"the share of memory in use is {use}; expected a number from 0 on.")
        if use > self._high_water:
            self._cuts += self.value > self.floor
        else:
            self._cuts = max(0, self._cuts - 1)
        return self.value

    def state_dict(self) -> dict[str, int]:
        return {"cuts": self._cuts}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from a stored state; more cuts than lead to the floor of this configuration count as those."""
        self._cuts = max(0, int(state["cuts"]))
        while self._cuts and math.floor(self.configured * self._shrink ** (self._cuts - 1)) <= self.floor:
            self._cuts -= 1


def max_new_tokens_controller(config: RunConfig, cuts: int, iteration: int) -> MaxNewTokens:
    """The controller in that iteration with `cuts` in force; no response is made too short to count (A5).

    Cuts are factors on the iteration's scheduled limit (K3), so the curriculum goes on where memory is scarce.
    """
    controller = MaxNewTokens(
        config.rollout.max_new_tokens_in(iteration),
        floor=max(config.memory.min_new_tokens, config.rollout.min_response_tokens),
        high_water=config.memory.high_water,
        shrink=config.memory.shrink,
    )
    controller.load_state_dict({"cuts": cuts})
    return controller
