"""What is known of a reward model: written by its validation, read by the report."""

from __future__ import annotations

from pathlib import Path

from pydantic import ConfigDict, Field, ValidationError

from rlhf_core.data.refs import Ref
from rlhf_core.data.store import read_json
from rlhf_core.errors import DataError

VALIDATION = "validation.json"
"""Name of the record's file in `reward_model/`."""


class Share(Ref):
    """A share of `pairs` pairs with its Wilson interval."""

    value: float
    low: float
    high: float
    pairs: int


class RewardModelValidation(Ref):
    """What pairs that it was not trained on tell of a reward model."""

    accuracy: Share
    by_domain: dict[str, Share]
    length_correlation: float = Field(description="Spearman's, of score and response length")
    length_correlation_low: float
    length_correlation_high: float
    shorter_preferred_accuracy: Share
    longer_wins_accuracy: Share
    word_baseline_accuracy: Share | None = Field(description="of TF-IDF and length on the same pairs")
    score_mean: float
    score_std: float
    confidence: float = Field(description="of all intervals")

    @property
    def beats_word_baseline(self) -> bool | None:
        """Whether it beats TF-IDF and length on the same pairs; None where there are no training pairs."""
        return None if self.word_baseline_accuracy is None else self.accuracy.value > self.word_baseline_accuracy.value


class RewardModelRecord(RewardModelValidation):
    """`validation.json`: what was measured, of which model, and what the gate says of it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    key: str = Field(description="of the model, the pairs and how they were scored; not of the gate's limits")
    path: Path = Field(description="of the model")
    failures: tuple[str, ...] = Field(description="what the gate refuses it for; none: accepted")


def load_reward_model_record(folder: Path) -> RewardModelRecord | None:
    """The record in the folder `reward_model/` of a run; None where no validation has run.

    Raises:
        DataError: the file is not what validation writes.
    """
    file = folder / VALIDATION
    if not file.exists():
        return None
    try:
        return RewardModelRecord.model_validate(read_json(file))
    except ValidationError as error:
        raise DataError(
            f"{file} is not a reward model's validation: {error}. Remove it, then resume the run."
        ) from error
