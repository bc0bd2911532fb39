"""What the report says of the reward model: did it earn its place, and against what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf_core.reporting.tables import Table, number, percent, table


@dataclass(frozen=True)
class RewardModelSection:
    sentences: list[str]
    tables: list[Table] = field(default_factory=list[Table])


def reward_model_section(validation: Mapping[str, Any]) -> RewardModelSection:
    """The verdict in words, then accuracy and length bias, then accuracy by domain."""
    if not validation:
        return RewardModelSection(["No reward model has been validated in this run (the reward may be a callable)."])
    rows = [
        ("accuracy on held-out pairs", _with_interval(validation, "accuracy", percent)),
        ("accuracy of TF-IDF with length on the same pairs", percent(validation.get("tfidf_accuracy"))),
        ("accuracy where the shorter response is preferred", percent(validation.get("shorter_preferred_accuracy"))),
        ("rank correlation of score and response length", _with_interval(validation, "length_correlation", number)),
        ("held-out pairs", number(validation.get("pairs"))),
    ]
    shown = table(("measure", "value (interval)"), [row for row in rows if row[1] != "–"], (1,))
    domains = validation.get("by_domain") or {}
    by_domain = table(
        ("domain", "pairs", "accuracy (interval)"),
        [(name, number(facts.get("pairs")), _with_interval(facts, "accuracy", percent)) for name, facts in domains.items()],
        (1, 2),
    )
    return RewardModelSection(_sentences(validation), [shown, *([by_domain] if len(domains) > 1 else [])])


def _sentences(validation: Mapping[str, Any]) -> list[str]:
    accepted = validation.get("is_accepted", True)
    sentences = ["The reward model passed its validation." if accepted else "The reward model failed its validation."]
    sentences.extend(validation.get("reasons", ()))
    accuracy, simple = validation.get("accuracy"), validation.get("tfidf_accuracy")
    if accuracy is not None and simple is not None and accuracy <= simple:
        sentences.append(
            f"It does not beat word counts with length ({percent(simple)}) on the same pairs: a rise of its reward is weak "
            "evidence of better responses."
        )
    return sentences


def _with_interval(facts: Mapping[str, Any], name: str, form: Any) -> str:
    value, low, high = facts.get(name), facts.get(f"{name}_low"), facts.get(f"{name}_high")
    if value is None or low is None or high is None:
        return form(value)
    return f"{form(value)} ({form(low)} to {form(high)})"
