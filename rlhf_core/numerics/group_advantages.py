"""Advantages of whole responses against the other responses to the same prompt: GRPO, RLOO, REINFORCE++ (P9).

`group_ids` may be any numbers in any order of rows; all rows of a group are on one rank. A row counts where `included`
is True and its score is finite; what does not (an empty response, E05; a NaN, N03) enters no statistic and gets 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlhf_core.errors import ConfigError
from rlhf_core.numerics.reductions import EPSILON, AllReduce, identity

GROUP_STD_FLOOR = 1e-4
"""Least standard deviation that is divided by, in units of the scores.

Far above what float32 rounding (1e-7) and other batch shapes (1e-6) put between equal scores, so that noise is not
blown up to advantages of size 1; far below a difference that a reward means.
"""


def group_numbers(names: Sequence[str]) -> Int[Tensor, " batch"]:
    """Return a number for each row that equal names share, by first appearance from 0: `group_ids` of prompts."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return torch.tensor([numbers[name] for name in names], dtype=torch.long)


def grpo_advantages(
    scores: Float[Tensor, " batch"],
    group_ids: Int[Tensor, " batch"],
    included: Bool[Tensor, " batch"],
    *,
    scale: Literal["std", "none"] = "std",
    baseline: Literal["mean", "leave_one_out"] = "mean",
    std_floor: float = GROUP_STD_FLOOR,
) -> Float[Tensor, " batch"]:
    """Return `(score - baseline) / max(std, std_floor)` within each group, in float64.

    Source: Shao et al. 2024, arXiv:2402.03300, section 4.1.2. Equal scores, and a group of one, give exactly 0. The
    deviation is the population's of the whole group for both baselines: that of the others alone is 0 for a row
    that differs from equal others (N02), whereas with the whole group's no advantage exceeds `n / sqrt(n - 1)`.

    Args:
        scores: one per response.
        group_ids: the prompt of each row.
        included: False keeps a row out of its group's statistics.
        scale: `none` leaves the difference in units of the scores (Dr. GRPO, arXiv:2503.20783).
        baseline: mean of the whole group, or of the row's others.
        std_floor: see `GROUP_STD_FLOOR`.

    Raises:
        ConfigError: the floor is not above 0.
    """
    if not std_floor > 0:
        raise ConfigError(f"std_floor={std_floor} lets equal scores divide 0 by 0. Set it above 0, such as 1e-4.")
    groups = _group_moments(scores, group_ids, included)
    advantages = groups.deviations
    if baseline == "leave_one_out":
        # score - mean of the others = n / (n - 1) × (score - mean of all)
        advantages = advantages * groups.counts / (groups.counts - 1).clamp(min=1)
    return advantages / groups.stds.clamp(min=std_floor) if scale == "std" else advantages


def rloo_advantages(
    scores: Float[Tensor, " batch"], group_ids: Int[Tensor, " batch"], included: Bool[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Return the score minus the mean of the group's other scores, in float64; 0 in a group of one.

    Source: Ahmadian et al. 2024, arXiv:2402.14740, section 3.2.
    """
    return grpo_advantages(scores, group_ids, included, scale="none", baseline="leave_one_out")


def group_baseline(
    scores: Float[Tensor, " batch"], group_ids: Int[Tensor, " batch"], included: Bool[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Return the score minus its group's mean, in float64.

    Source: REINFORCE++-baseline, arXiv:2501.03262; it whitens the result over the global batch (see `whiten`).
    """
    return grpo_advantages(scores, group_ids, included, scale="none", baseline="mean")


def uniform_groups(
    scores: Float[Tensor, " batch"], group_ids: Int[Tensor, " batch"], included: Bool[Tensor, " batch"]
) -> Bool[Tensor, " batch"]:
    """Return True for each row whose group teaches nothing: its scores that count differ by 1e-8 at most.

    So do groups in which one row or none counts. DAPO's dynamic sampling replaces such groups (arXiv:2503.14476).
    """
    return _group_moments(scores, group_ids, included).spreads <= EPSILON


def zero_std_fraction(
    scores: Float[Tensor, " batch"],
    group_ids: Int[Tensor, " batch"],
    included: Bool[Tensor, " batch"],
    all_reduce: AllReduce = identity,
) -> float:
    """Return the share of all ranks' groups that teach nothing (N04), each counted once; 0 where there is no group."""
    is_uniform = uniform_groups(scores, group_ids, included)
    counts = [len(group_ids[is_uniform].unique()), len(group_ids.unique())]
    uniform, groups = all_reduce(torch.tensor(counts, dtype=torch.float64, device=scores.device)).tolist()
    return uniform / groups if groups else 0.0


@dataclass(frozen=True)
class _GroupMoments:
    """Statistics of each row's group, float64 `[batch]`."""

    deviations: Tensor
    """Score minus the group's mean; exactly 0 where all scores are equal, and for a row that does not count."""
    counts: Tensor
    stds: Tensor
    """Population standard deviation."""
    spreads: Tensor
    """Greatest score minus least."""


def _group_moments(scores: Tensor, group_ids: Tensor, included: Tensor) -> _GroupMoments:
    """Two passes in float64, from scores relative to the group's least: equal ones have exactly no spread (N02)."""
    counted = included & torch.isfinite(scores)
    ids, index = group_ids.unique(return_inverse=True)
    zeros = torch.zeros(len(ids), dtype=torch.float64, device=scores.device)
    exact = scores.detach().to(torch.float64)
    least = torch.full_like(zeros, torch.inf).scatter_reduce(
        0, index, exact.masked_fill(~counted, torch.inf), reduce="amin"
    )
    above_least = (exact - least[index]).masked_fill(~counted, 0.0)
    counts = zeros.index_add(0, index, counted.to(torch.float64))
    means = zeros.index_add(0, index, above_least) / counts.clamp(min=1)
    deviations = (above_least - means[index]).masked_fill(~counted, 0.0)
    variances = zeros.index_add(0, index, deviations.square()) / counts.clamp(min=1)
    spreads = zeros.scatter_reduce(0, index, above_least, reduce="amax")
    return _GroupMoments(deviations, counts[index], variances.sqrt()[index], spreads[index])
