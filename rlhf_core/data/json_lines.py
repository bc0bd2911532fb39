"""Files of JSON lines that grow: events, timings, results; a line is there whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.data.store import disk_errors
from rlhf_core.errors import DataError


def append_json_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append one JSON line and force it to the disk; a last line that a kill cut short is removed first."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            content = path.read_bytes()
            if not content.endswith(b"\n"):
                file.truncate(content.rfind(b"\n") + 1)
            file.write((json.dumps(value, sort_keys=True, default=str) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON-lines file; a last line that a kill cut short is left out."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if number == len(lines):
                break
            raise DataError(f"{path}, line {number} is not valid JSON: {error}.") from error
    return rows
