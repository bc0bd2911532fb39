"""What both sides must do alike."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """One trial. All sizes in rollouts or tokens."""

    model: str
    """Folder of the random model; both sides load it in float32."""
    dtype: str
    """`float32`, or `bfloat16` for autocast with float32 weights."""
    threads: int
    rollouts: int
    prompt_tokens: int
    response_tokens: int
    """Length limit; every response has it, unless `is_ragged`."""
    is_ragged: bool
    epochs: int
    mini_batch: int
    micro_batch: int
    """Of our side; TRL's mini-batch is one forward pass."""
    warmup_updates: int
    updates: int
    seed: int

    def prompts(self) -> list[list[int]]:
        """Token lists of equal length, without the special ids 0 to 2."""
        draw = random.Random(self.seed)
        return [[draw.randrange(3, 40000) for _ in range(self.prompt_tokens)] for _ in range(self.rollouts)]

    def lengths(self) -> list[int]:
        """Response lengths by row; drawn once, the same on both sides and in every update."""
        if not self.is_ragged:
            return [self.response_tokens] * self.rollouts
        draw = random.Random(self.seed + 1)
        return [draw.randint(min(8, self.response_tokens), self.response_tokens) for _ in range(self.rollouts)]

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))


def read_settings(path: str) -> Settings:
    """What `Settings.write` wrote."""
    return Settings(**json.loads(Path(path).read_text()))
