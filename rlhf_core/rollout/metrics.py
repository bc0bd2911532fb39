"""Metrics of one iteration's rollouts: lengths, endings, variety (E4) and acceptance (G3)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd

from rlhf_core.rollout.filters import FilterChain
from rlhf_core.rollout.rejection import Sampled
from rlhf_core.rollout.text_statistics import distinct_fraction, repeated_ngram_fraction


def rollout_metrics(sampled: Sampled, places: int) -> dict[str, float]:
    """Length, endings, repetition and variety of the kept rows.

    Args:
        sampled: kept (not empty) and rejected rows.
        places: responses wanted.
    """
    kept = sampled.kept
    lengths = np.array([len(ids) for ids in kept["response_ids"]])
    repeated = [repeated_ngram_fraction(ids) for ids in kept["response_ids"]]
    responses = kept["response_ids"].tolist()
    return {
        "rollout/response_tokens_mean": float(lengths.mean()),
        "rollout/response_tokens_p95": float(np.percentile(lengths, 95)),
        **{f"rollout/{name}_fraction": _share(kept, name) for name in ("natural", "early", "truncated")},
        "rollout/attempts_mean": sampled.drawn / places,
        "rollout/repeated_ngram_fraction": float(np.mean(repeated)),
        "rollout/distinct_1": distinct_fraction(responses, 1),
        "rollout/distinct_2": distinct_fraction(responses, 2),
        "rollout/distinct_3": distinct_fraction(responses, 3),
    }


def acceptance_metrics(sampled: Sampled, filters: FilterChain) -> dict[str, float]:
    """What was accepted of all that was drawn: in all, by each filter of what it saw, and by domain."""
    drawn = pd.concat([frame[["domain", "rejected_by"]] for frame in (sampled.kept, sampled.rejected)])
    domains = [str(domain) for domain in drawn["domain"]]
    accepted = [not isinstance(reason, str) for reason in drawn["rejected_by"]]
    of_domain, accepted_of = Counter(domains), Counter(d for d, ok in zip(domains, accepted, strict=True) if ok)
    counts = sampled.rejection_counts
    return {
        "rollout/acceptance_rate": sum(accepted) / len(accepted),
        "rollout/penalised_fraction": sum(isinstance(reason, str) for reason in sampled.kept["rejected_by"])
        / len(sampled.kept),
        "rollout/replaced": float(len(sampled.replaced)),
        **{f"rollout/rejected_{name}": float(count) for name, count in sorted(counts.items())},
        **{
            f"rollout/acceptance_of_{name}": 1.0 - counts.get(name, 0) / seen
            for name, seen in sorted(filters.texts.items())
            if seen
        },
        **{f"rollout/acceptance_in_{name}": accepted_of[name] / of_domain[name] for name in sorted(of_domain)},
    }


def _share(rows: pd.DataFrame, ending: str) -> float:
    return [str(found) for found in rows["ending"]].count(ending) / len(rows)
