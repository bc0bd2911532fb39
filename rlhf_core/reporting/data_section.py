"""What the report says of the data: counts, quarantined rows, the way to the Data Docs."""

from __future__ import annotations

import pandas as pd

from rlhf_core.data.store import MANIFEST, RunFolder, read_json
from rlhf_core.reporting.sources import finite_of
from rlhf_core.reporting.tables import Table, facts_table


def data_facts(folder: RunFolder) -> Table | None:
    """Counts that data preparation recorded; None before it ran."""
    manifest = folder.prompts / MANIFEST
    if not manifest.exists():
        return None
    metrics = read_json(manifest)["metrics"]
    return facts_table(
        {name.removeprefix("data/").replace("_", " "): _count(value) for name, value in sorted(metrics.items())}
    )


def quarantine_sentence(metrics: pd.DataFrame) -> str:
    """How many scored rollouts failed an expectation, over all iterations; empty before the first."""
    rows, bad = int(sum(finite_of(metrics, "validation/rows"))), int(sum(finite_of(metrics, "validation/quarantined")))
    if not rows:
        return ""
    if not bad:
        return f"All {rows} scored rollouts met every expectation."
    return f"{bad} of {rows} scored rollouts failed an expectation; they lie with their reasons in quarantined.parquet."


def data_docs(folder: RunFolder) -> str | None:
    """The Data Docs' first page, relative to the report; None when there is none."""
    pages = sorted(folder.validation.rglob("index.html"), key=lambda page: (len(page.parts), str(page)))
    return pages[0].relative_to(folder.path).as_posix() if pages else None


def _count(value: float) -> float | int:
    return int(value) if float(value).is_integer() else value
