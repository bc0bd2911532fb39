"""Groups whose rewards are all equal teach nothing: they are sampled again (DAPO, arXiv:2503.14476; P9, K09)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd
import torch

from rlhf_core.errors import CannotLearn
from rlhf_core.numerics.group_advantages import group_numbers, uniform_groups
from rlhf_core.rollout.rejection import Rejecter, Sampled, sample_with_rejection
from rlhf_core.rollout.sampling import Place, Sampler

ScoreRows = Callable[[pd.DataFrame], list[float]]
"""Raw scores of rollout rows; NaN where a response is not scored."""


def sample_informative_groups(
    sampler: Sampler, places: Sequence[Place], rejecter: Rejecter, score: ScoreRows, *, max_attempts: int
) -> tuple[Sampled, dict[str, float]]:
    """Sample all places, then those of uniform groups again, until none is left or the tries are used up.

    A group that stays uniform keeps its last responses; its advantages are 0. Rows are in the places' order.

    Args:
        sampler: of the policy.
        places: prompt and sample index of each response; equal prompts are one group.
        rejecter: filters that every response passes.
        score: asked about every row that was sampled.
        max_attempts: further tries after the first sampling.

    Returns:
        Kept, rejected and replaced rows, and metrics `rollout/…`.

    Raises:
        CannotLearn: every response was rejected, or every group is uniform after the last try (K09).
        NumericsError: the policy's logits are NaN or infinite.
    """
    stride = 1 + max(place.sample_index for place in places)
    sampled = sample_with_rejection(sampler, places, rejecter)
    kept, rejected, replaced = sampled.kept, [sampled.rejected], [sampled.replaced]
    uniform = _uniform_prompts(kept, score)
    first, tries = len(uniform), 0
    while uniform and tries < max_attempts:
        tries += 1
        again = [
            Place(place.prompt, place.sample_index + tries * stride)
            for place in places
            if str(place.prompt["prompt_id"]) in uniform
        ]
        sampled = sample_with_rejection(sampler, again, rejecter)
        renewed = set(sampled.kept["prompt_id"].tolist())
        stays = [prompt not in renewed for prompt in kept["prompt_id"].tolist()]
        kept = pd.concat([kept.loc[stays], sampled.kept], ignore_index=True)
        rejected.append(sampled.rejected)
        replaced.append(sampled.replaced)
        uniform = _uniform_prompts(kept, score)
    groups = {str(place.prompt["prompt_id"]) for place in places}
    found = Sampled(*(pd.concat(frames, ignore_index=True) for frames in ([kept], rejected, replaced)))
    _require_a_difference(found, uniform, tries)
    metrics = {
        "rollout/uniform_group_fraction_first": first / len(groups),
        "rollout/uniform_group_fraction": len(uniform) / len(groups),
        "rollout/dynamic_sampling_tries": float(tries),
    }
    return Sampled(_in_order(found.kept, places), found.rejected, found.replaced), metrics


def _uniform_prompts(rows: pd.DataFrame, score: ScoreRows) -> set[str]:
    if rows.empty:
        return set()
    scores = torch.tensor(score(rows), dtype=torch.float64)
    prompts = rows["prompt_id"].tolist()
    is_uniform = uniform_groups(scores, group_numbers(prompts), torch.isfinite(scores)).tolist()
    return {prompt for prompt, uniform in zip(prompts, is_uniform, strict=True) if uniform}


def _require_a_difference(sampled: Sampled, uniform: set[str], tries: int) -> None:
    if sampled.kept.empty or set(sampled.kept["prompt_id"]) <= uniform:
        counts = sampled.rejection_counts
        refused = f"; rejected: {counts}" if counts else ""
        raise CannotLearn(
            f"after {tries} further tries the rewards within each of the {len(uniform)} groups are all equal{refused}: "
            "nothing tells a good response from a bad one, so no policy gradient is left. The reward may be constant "
            "or saturated, the tasks all too easy or too hard, or the temperature too low: look at the scored "
            "responses; raise rollout.samples_per_prompt or rollout.temperature, or take other prompts."
        )


def _in_order(rows: pd.DataFrame, places: Sequence[Place]) -> pd.DataFrame:
    order = {prompt: number for number, prompt in enumerate(dict.fromkeys(str(p.prompt["prompt_id"]) for p in places))}
    rank = [order[prompt] for prompt in rows["prompt_id"].tolist()]
    return rows.assign(rank=rank).sort_values(["rank", "sample_index"]).drop(columns="rank").reset_index(drop=True)
