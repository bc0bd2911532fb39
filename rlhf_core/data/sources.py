"""One way in for all texts (D1): local files and folders, and hub data sets, with columns renamed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from string import Formatter
from typing import Any

import pandas as pd

from rlhf_core.config.data import SourceConfig
from rlhf_core.data.hub import hub_rows, is_hub
from rlhf_core.data.local_files import Row, file_rows, source_files
from rlhf_core.data.store import file_sha256
from rlhf_core.errors import DataError

DEFAULT_DOMAIN = "general"


def load_rows(source: SourceConfig, root: Path, *, required: Sequence[str]) -> pd.DataFrame:
    """The source's rows with the columns `required`, `domain` and `origin` (file and line, for messages).

    `source.columns` maps our names to theirs; a value with braces is a template over their columns, e.g.
    `prompt: "{instruction}\\n{input}"`. Relative paths start from `root`.

    Raises:
        DataError: a file is missing, empty or malformed, or a column is missing or not text.
    """
    rows: list[dict[str, str]] = []
    base = f"{root.expanduser().absolute()}/"
    for place, row in islice(_source_rows(source, root), source.limit):
        fields = {name: _text(row, source.columns.get(name, name), place) for name in required}
        rows.append({**fields, "domain": _domain(row, source, place), "origin": place.removeprefix(base)})
    if not rows:
        where = source.path if is_hub(source) else (root / source.path).expanduser().absolute()
        raise DataError(f"{where} has no rows. Give a source with data, or remove it from the configuration.")
    return pd.DataFrame(rows, columns=[*required, "domain", "origin"], dtype=object)


def source_fingerprint(source: SourceConfig, root: Path) -> str:
    """What the source's rows depend on: the SHA-256 of its files, or the hub's names."""
    if is_hub(source):
        return f"{source.path}/{source.subset}/{source.split}"
    return ",".join(file_sha256(file) for file in source_files(source.path, root, source.format))


def _source_rows(source: SourceConfig, root: Path) -> Iterator[Row]:
    if is_hub(source):
        yield from hub_rows(source)
        return
    for file in source_files(source.path, root, source.format):
        yield from file_rows(file, source.format, source.separator)


def _text(row: Mapping[str, Any], column: str, place: str) -> str:
    """The text of a column, or of a template over columns."""
    if "{" in column:
        names = [name for _, name, _, _ in Formatter().parse(column) if name]
        return column.format_map({name: _text(row, name, place) for name in names}).strip()
    if column not in row:
        raise DataError(
            f"{place}: there is no column {column!r}; it has {sorted(row)}. "
            "Name the right one in the source's `columns` (ours: theirs)."
        )
    value = row[column]
    if not isinstance(value, str):
        found = "null" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"
        raise DataError(f"{place}, column {column!r}: expected text, found {found}.")
    return value


def _domain(row: Mapping[str, Any], source: SourceConfig, place: str) -> str:
    if source.domain is not None:
        return source.domain
    column = source.columns.get("domain", "domain")
    is_asked_for = "domain" in source.columns
    if not is_asked_for and row.get(column) is None:
        return DEFAULT_DOMAIN
    return _text(row, column, place) or DEFAULT_DOMAIN
