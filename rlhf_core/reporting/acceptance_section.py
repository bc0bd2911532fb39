"""What the report says of rejection sampling: what passed, by filter and domain, and what a filter costs (G3)."""

from __future__ import annotations

import pandas as pd

from rlhf_core.data.filter_timing import filter_costs
from rlhf_core.reporting.sources import RunRecord, finite_of
from rlhf_core.reporting.tables import Table, percent, table

_BY_FILTER, _BY_DOMAIN = "rollout/acceptance_of_", "rollout/acceptance_in_"


def acceptance_table(run: RunRecord) -> Table | None:
    """Mean and last acceptance over the iterations, in all, by filter and by domain; None before the first."""
    metrics = run.metrics
    if "rollout/acceptance_rate" not in metrics:
        return None
    costs = filter_costs(run.folder)
    rows = [("all responses", *_shares(metrics, "rollout/acceptance_rate"), "")]
    for name in metrics.columns:
        if name.startswith(_BY_FILTER):
            reason = name.removeprefix(_BY_FILTER)
            cost = f"{costs['milliseconds_per_text'][reason]:.3f}" if reason in costs.index else "–"
            rows.append((f"filter: {reason.replace('_', ' ')}", *_shares(metrics, name), cost))
    domains = [name for name in metrics.columns if name.startswith(_BY_DOMAIN)]
    rows += [(f"domain: {name.removeprefix(_BY_DOMAIN)}", *_shares(metrics, name), "") for name in domains]
    return table(("responses", "accepted, mean", "accepted, last", "milliseconds per text"), rows, (1, 2, 3))


def _shares(metrics: pd.DataFrame, name: str) -> tuple[str, str]:
    found = finite_of(metrics, name)
    return (percent(sum(found) / len(found)), percent(found[-1])) if found else ("–", "–")
