"""Rows of local files: JSON lines, JSON, CSV, Parquet and plain text; each with its place for error messages."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlhf_core.errors import DataError

ENDINGS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".txt": "text",
    ".text": "text",
}
"""File ending → format. Text formats may be gzipped (`.jsonl.gz`)."""

Row = tuple[str, Mapping[str, Any]]
"""Where a row stands (`pairs.jsonl, line 3`) and its fields."""


def source_files(path: str, root: Path, file_format: str) -> list[Path]:
    """The files of a source in a fixed order: itself, or all files of a folder that have a known ending.

    Raises:
        DataError: there is no such file, the folder holds none that can be read, or the format is unknown.
    """
    resolved = (root / path).expanduser().absolute()
    if resolved.is_dir():
        files = sorted(file for file in resolved.rglob("*") if _is_wanted(file, resolved, file_format))
        if not files:
            wanted = f"of format {file_format}" if file_format != "auto" else f"ending in {', '.join(ENDINGS)}"
            raise DataError(f"{resolved} is a folder without files {wanted}. Give the path of a data file.")
        return files
    if not resolved.exists():
        raise DataError(
            f"{path!r} is missing: there is no {resolved} (data.root is {str(root)!r}). "
            "Correct the path, or set data.root to the folder that holds the data."
        )
    return [resolved]


def file_rows(file: Path, file_format: str, separator: str) -> Iterator[Row]:
    """Rows of one file; a text file gives one row `text` per document.

    Raises:
        DataError: the file is not what its format says; names the file and the line.
    """
    kind = _format_of(file) if file_format == "auto" else file_format
    if kind is None:
        known = sorted(set(ENDINGS.values()))
        raise DataError(f"{file}: the ending does not tell the format. Set the source's `format` to one of {known}.")
    try:
        if kind == "parquet":
            yield from _parquet_rows(file)
        elif kind == "json":
            yield from _json_rows(file)
        elif kind == "csv":
            yield from _csv_rows(file)
        elif kind == "text":
            yield from _text_rows(file, separator)
        else:
            yield from _json_line_rows(file)
    except (PermissionError, IsADirectoryError, gzip.BadGzipFile) as error:
        raise DataError(f"{file} cannot be read: {error}.") from error


def _format_of(file: Path) -> str | None:
    suffix = Path(file.stem).suffix if file.suffix == ".gz" else file.suffix
    return ENDINGS.get(suffix.lower())


def _is_wanted(file: Path, folder: Path, file_format: str) -> bool:
    if not file.is_file() or any(part.startswith(".") for part in file.relative_to(folder).parts):
        return False
    found = _format_of(file)
    return found is not None if file_format == "auto" else found == file_format


def _open(file: Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb")


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines, ends included; a byte-order mark is dropped."""
    with _open(file) as stream:
        for number, raw in enumerate(stream, start=1):
            try:
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                byte = raw[error.start]
                raise DataError(
                    f"{file}, line {number} is not UTF-8 (byte 0x{byte:02x} at column {error.start + 1}). "
                    "Convert the file to UTF-8, e.g. with `iconv -t UTF-8`."
                ) from error


def _json_line_rows(file: Path) -> Iterator[Row]:
    for number, line in _lines(file):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{file}, line {number} is not valid JSON: {error}. Mend or remove that line.") from error
        yield f"{file}, line {number}", _require_object(row, f"{file}, line {number}")


def _json_rows(file: Path) -> Iterator[Row]:
    content = "".join(line for _, line in _lines(file))
    if not content.strip():
        return
    try:
        rows = json.loads(content)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{file}, line {error.lineno} is not valid JSON: {error.msg}. "
            "With one JSON object a line, set format: jsonl."
        ) from error
    if not isinstance(rows, list):
        raise DataError(f"{file} holds a JSON {type(rows).__name__}; expected a list of objects.")
    for number, row in enumerate(rows, start=1):
        yield f"{file}, row {number}", _require_object(row, f"{file}, row {number}")


def _require_object(row: object, place: str) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise DataError(f"{place} holds a JSON {type(row).__name__}; expected an object with named fields.")
    return row


def _csv_rows(file: Path) -> Iterator[Row]:
    reader = csv.reader((line for _, line in _lines(file)), strict=True)
    header: list[str] | None = None
    try:
        for fields in reader:
            if header is None:
                header = fields
            elif fields:
                place = f"{file}, line {reader.line_num}"
                if len(fields) != len(header):
                    raise DataError(f"{place} has {len(fields)} fields; the header names {len(header)}: {header}.")
                yield place, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise DataError(f"{file}, line {reader.line_num} is not valid CSV: {error}.") from error


def _parquet_rows(file: Path) -> Iterator[Row]:
    try:
        with pq.ParquetFile(file) as parquet:
            number = 0
            for batch in parquet.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{file}, row {number}", row
    except pa.ArrowInvalid as error:
        raise DataError(f"{file} is not a readable Parquet file: {error}.") from error


def _text_rows(file: Path, separator: str) -> Iterator[Row]:
    """Documents between separators, without surrounding white space; the place is the document's first line."""
    line = 1
    for part in "".join(text for _, text in _lines(file)).replace("\r\n", "\n").split(separator):
        if part.strip():
            first = line + part[: len(part) - len(part.lstrip())].count("\n")
            yield f"{file}, line {first}", {"text": part.strip()}
        line += part.count("\n") + separator.count("\n")
