"""Makes verl and torchrl importable, and the batch on which our formulas are held against theirs.

Run by `make test-oracles` in an environment of its own; the plain suite does not come here (`norecursedirs`).
"""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor


@contextmanager
def _without_ray() -> Iterator[None]:
    """Let verl's formulas be imported without Ray, a hundred megabytes of which they use nothing.

    verl's package imports Ray as a whole, for its trainers; the one name that is read while it is imported is a type in
    a signature. Afterwards the empty module is gone again, so that nobody takes it for Ray.
    """
    ray = types.ModuleType("ray")
    ray.ObjectRef = type("ObjectRef", (), {})
    sys.modules["ray"] = ray
    try:
        yield
    finally:
        del sys.modules["ray"]


try:
    with warnings.catch_warnings():
        # Their deprecations are not ours to mend.
        warnings.simplefilter("ignore")
        # Before the stand-in: torchrl asks whether Ray is there.
        import torchrl.objectives.llm  # noqa: F401

        with _without_ray():
            import verl.trainer.ppo.core_algos
            import verl.trainer.ppo.rollout_corr_helper  # noqa: F401
except ModuleNotFoundError as error:
    raise pytest.UsageError(f"{error}. These tests need verl and torchrl; run them by `make test-oracles`.") from error


@pytest.fixture(autouse=True)
def _double_precision() -> Iterator[None]:
    """torchrl turns its γ, λ and ε into tensors of the default dtype; float32 would round them to 1e-8."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@dataclass(frozen=True)
class Batch:
    """Six responses of 1 to 9 tokens to three prompts, padded to 9; float64."""

    mask: Tensor
    rewards: Tensor
    values: Tensor
    bootstrap: Tensor
    """Value after the last token of the responses that were cut, 0 for the others."""
    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    scores: Tensor
    group_ids: Tensor
    """Groups of 3, 2 and 1."""

    @property
    def last(self) -> Tensor:
        """Index of each response's last token."""
        return self.mask.sum(dim=1) - 1

    @property
    def tokens(self) -> int:
        """Response tokens of the batch."""
        return int(self.mask.sum())


@pytest.fixture(params=[0, 1, 2], ids=["seed0", "seed1", "seed2"])
def batch(request: pytest.FixtureRequest) -> Batch:
    """A random batch; what stands at padding differs from 0, so that a forgotten mask shows."""
    generator = torch.Generator().manual_seed(request.param)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.tensor([9, 1, 5, 7, 2, 8])
    was_cut = torch.tensor([True, False, True, False, True, False])
    old_logprobs = -draw(6, 9).abs() - 0.1
    return Batch(
        mask=torch.arange(9)[None, :] < lengths[:, None],
        rewards=draw(6, 9),
        values=draw(6, 9),
        bootstrap=draw(6) * was_cut,
        logprobs=old_logprobs + 0.4 * draw(6, 9),
        old_logprobs=old_logprobs,
        advantages=draw(6, 9),
        scores=draw(6),
        group_ids=torch.tensor([4, 9, 4, 4, 9, 1]),
    )
