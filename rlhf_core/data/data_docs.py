"""Data Docs: what great-expectations found, as plain pages in the run folder.

The library's own site loads styles and scripts from a dozen hosts (so it is unreadable without a network), copies 4 MB
of files and takes longer than the validation. These pages need nothing but themselves, and each costs the same however
many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from rlhf_core.data.expectations import CheckResult, TableCheck
from rlhf_core.data.json_lines import append_json_line, read_json_lines
from rlhf_core.data.store import write_bytes

INDEX = "index.html"
RESULTS = "results.jsonl"

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--good:#1a7f37;--bad:#cf222e}
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0 0 .25rem}h2{font-size:1.15rem;margin:2rem 0 .5rem}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.4rem .75rem;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600}td.n{text-align:right;font-variant-numeric:tabular-nums}th.n{text-align:right}
.good,.bad{white-space:nowrap}.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}
code{font-family:ui-monospace,monospace;font-size:.9em;overflow-wrap:anywhere}.muted{opacity:.7}
"""


def write_data_docs(folder: Path, name: str, title: str, checks: Sequence[TableCheck]) -> Path:
    """Write the page `name.html` of one validation, its line in `results.jsonl`, and the index of all.

    Args:
        folder: the run's `validation/`.
        name: of the page; writing it again replaces it.
        title: what was validated, in words.
        checks: one for each table.
    """
    page = folder / f"{name}.html"
    write_bytes(page, _page(title, "".join(_section(check) for check in checks), back=True).encode())
    summary = {
        "name": name,
        "title": title,
        "rows": sum(check.rows for check in checks),
        "failed_rows": sum(len(check.reasons) for check in checks),
        "failed": [
            f"{check.suite}: {item.description}" for check in checks for item in check.checks if not item.is_success
        ],
    }
    if summary not in read_json_lines(folder / RESULTS):
        append_json_line(folder / RESULTS, summary)
    latest = {row["name"]: row for row in read_json_lines(folder / RESULTS)}
    write_bytes(folder / INDEX, _page("Data validation", _index(list(latest.values())), back=False).encode())
    return page


def _page(title: str, body: str, *, back: bool) -> str:
    link = f'<p class="muted"><a href="{INDEX}">All validations</a></p>' if back else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body>{link}<h1>{escape(title)}</h1>{body}</body></html>\n"
    )


def _section(check: TableCheck) -> str:
    failed = len(check.reasons)
    passed = sum(item.is_success for item in check.checks)
    rows = "".join(_row(item, check.rows) for item in sorted(check.checks, key=lambda item: item.is_success))
    return (
        f"<h2>{escape(check.suite)}</h2><p>{_mark(check.is_success)} {passed} of {len(check.checks)} expectations "
        f"hold; {failed:,} of {check.rows:,} rows fail.</p><table><thead><tr>"
        '<th>Result</th><th>Expectation</th><th>Column</th><th class="n">Failed rows</th><th>Examples</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _row(item: CheckResult, rows: int) -> str:
    failed = f"{len(item.failed_rows):,} ({len(item.failed_rows) / rows:.1%})" if item.failed_rows else "0"
    count = "table" if item.is_about_table else failed
    examples = ", ".join(f"<code>{escape(example)}</code>" for example in item.examples)
    return (
        f"<tr><td>{_mark(item.is_success)}</td><td>{escape(item.description)}</td><td><code>{escape(item.column)}</code></td>"
        f'<td class="n">{count}</td><td>{examples}</td></tr>'
    )


def _index(rows: Sequence[dict[str, Any]]) -> str:
    lines = "".join(
        f"<tr><td>{_mark(not row['failed'])}</td>"
        f'<td><a href="{escape(row["name"])}.html">{escape(row["title"])}</a></td>'
        f'<td class="n">{row["rows"]:,}</td><td class="n">{row["failed_rows"]:,}</td>'
        f"<td>{'; '.join(escape(text) for text in row['failed'])}</td></tr>"
        for row in rows
    )
    return (
        "<p>What great-expectations found at each border of the pipeline.</p><table><thead><tr><th>Result</th>"
        '<th>Validation</th><th class="n">Rows</th><th class="n">Failed rows</th><th>What failed</th></tr></thead>'
        f"<tbody>{lines}</tbody></table>"
    )


def _mark(is_success: bool) -> str:
    return '<span class="good">✓ holds</span>' if is_success else '<span class="bad">✗ fails</span>'
