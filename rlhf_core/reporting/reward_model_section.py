"""What the report says of the reward model: did it earn its place, and against what."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlhf_core.data.reward_model_record import RewardModelRecord, Share
from rlhf_core.reporting.tables import Table, number, percent, table


@dataclass(frozen=True)
class RewardModelSection:
    sentences: list[str]
    tables: list[Table] = field(default_factory=list[Table])


def reward_model_section(facts: RewardModelRecord | None) -> RewardModelSection:
    """The verdict in words, then accuracy and length bias, then accuracy by domain."""
    if facts is None:
        return RewardModelSection(["No reward model has been validated in this run (the reward may be a callable)."])
    shares = [
        ("accuracy", facts.accuracy),
        ("accuracy where the shorter response is preferred", facts.shorter_preferred_accuracy),
        ("for comparison: TF-IDF with length", facts.word_baseline_accuracy),
        ("for comparison: the longer response wins", facts.longer_wins_accuracy),
    ]
    rows = [(name, _interval(share), str(share.pairs)) for name, share in shares if share is not None]
    correlation = " to ".join(number(end) for end in (facts.length_correlation_low, facts.length_correlation_high))
    rows.append(("rank correlation of score and length", f"{number(facts.length_correlation)} ({correlation})", ""))
    rows.append(("score, mean and standard deviation", f"{number(facts.score_mean)}, {number(facts.score_std)}", ""))
    tables = [table(("on held-out pairs", f"value ({100 * facts.confidence:g} % interval)", "pairs"), rows, (1, 2))]
    if len(facts.by_domain) > 1:
        domains = [(name, _interval(share), str(share.pairs)) for name, share in facts.by_domain.items()]
        tables.append(table(("domain", "accuracy (interval)", "pairs"), domains, (1, 2)))
    return RewardModelSection(_sentences(facts), tables)


def _sentences(facts: RewardModelRecord) -> list[str]:
    sentences = [
        "The reward model failed its validation:" if facts.failures else "The reward model passed its validation."
    ]
    sentences.extend(facts.failures)
    simple = facts.word_baseline_accuracy
    if simple is not None and not facts.beats_word_baseline:
        sentences.append(
            f"It does not beat word counts with length ({percent(simple.value)}) on the same pairs: a rise of its "
            "reward is weak evidence of better responses."
        )
    return sentences


def _interval(share: Share) -> str:
    return f"{percent(share.value)} ({percent(share.low)} to {percent(share.high)})"
