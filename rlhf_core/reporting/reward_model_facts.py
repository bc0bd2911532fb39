"""What validation measured of the reward model, read from the run folder."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from rlhf_core.data.store import read_json
from rlhf_core.errors import DataError


class Share(BaseModel):
    """A share of `pairs` pairs with its interval."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    value: float
    low: float
    high: float
    pairs: int


class RewardModelFacts(BaseModel):
    """The part of `reward_model/validation.json` that is shown."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    accuracy: Share
    by_domain: dict[str, Share]
    length_correlation: float
    length_correlation_low: float
    length_correlation_high: float
    shorter_preferred_accuracy: Share
    longer_wins_accuracy: Share
    word_baseline_accuracy: Share | None
    score_mean: float
    score_std: float
    confidence: float
    failures: tuple[str, ...]


def load_reward_model_facts(path: Path) -> RewardModelFacts | None:
    """What validation measured; None where it has not run.

    Raises:
        DataError: the file is not what validation writes.
    """
    if not path.exists():
        return None
    try:
        return RewardModelFacts.model_validate(read_json(path))
    except ValidationError as error:
        raise DataError(
            f"{path} is not a reward model's validation: {error}. Remove it, then resume the run."
        ) from error
