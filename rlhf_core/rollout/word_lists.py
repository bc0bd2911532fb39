"""Files of banned words and of safe replies, read with the line of every fault."""

from __future__ import annotations

import json
from pathlib import Path

from rlhf_core.config.banned_words import banned_phrase
from rlhf_core.errors import ConfigError

_REMARK = "#"


def read_phrases(path: Path) -> list[tuple[str, ...]]:
    """Words and phrases, one a line; blank lines and those that begin with # say nothing.

    Raises:
        ConfigError: the file cannot be read, holds nothing, or a line is no word.
    """
    phrases: list[tuple[str, ...]] = []
    for number, line in enumerate(_lines(path, "rollout.rejection.banned_words_files"), start=1):
        if line.strip() and not line.lstrip().startswith(_REMARK):
            try:
                phrases.append(banned_phrase(line.strip()))
            except ValueError as error:
                raise ConfigError(f"{path}, line {number}: {error}") from error
    if not phrases:
        raise ConfigError(f"{path} has no banned word. Give one a line, or take the file out of banned_words_files.")
    return phrases


def read_replies(path: Path) -> dict[str, str]:
    """Safe replies by prompt, from JSON lines with `prompt` and `response`; a later line wins.

    Raises:
        ConfigError: the file cannot be read, or a line is not of that form.
    """
    replies: dict[str, str] = {}
    for number, line in enumerate(_lines(path, "rollout.rejection.replacement.cache_file"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number} is not valid JSON: {error}.") from error
        texts = [row.get(name) for name in ("prompt", "response")] if isinstance(row, dict) else [None]
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise ConfigError(
                f'{path}, line {number}: expected {{"prompt": "…", "response": "…"}}, both with text; '
                f"found {line.strip()[:120]}"
            )
        replies[row["prompt"]] = row["response"]
    return replies


def _lines(path: Path, field: str) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{field}: {path} cannot be read: {error}. Give a UTF-8 text file; relative paths start from data.root."
        ) from error
