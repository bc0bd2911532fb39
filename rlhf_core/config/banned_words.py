"""Words as a list of banned ones and a text are compared by: whole, in any case, whatever their Unicode form."""

from __future__ import annotations

import unicodedata

_JOINERS = frozenset("-'’‐‑")
"""Signs inside a word that divide it, in the list as in a text."""


def words_of(text: str) -> list[str]:
    """The words of a text, case folded, in Unicode's compatibility form, and without invisible characters.

    A word is an unbroken row of letters, digits and marks; "don't" is two.
    """
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    visible = [c for c in plain if unicodedata.category(c) != "Cf"]
    return "".join(c if _is_of_a_word(c) else " " for c in visible).split()


def banned_phrase(entry: str) -> tuple[str, ...]:
    """The words of one entry of a list.

    Raises:
        ValueError: it has none, or signs that would be lost in the comparison.
    """
    words = words_of(entry)
    lost = sorted({c for c in entry if not (_is_of_a_word(c) or c.isspace() or c in _JOINERS) and _is_visible(c)})
    if not words or lost:
        fault = f"has signs that do not belong to a word ({' '.join(lost)})" if lost else "has no letter or digit"
        raise ValueError(
            f"the banned word {entry!r} {fault}. Words and phrases are compared by letters and digits alone; "
            "for anything else write a regular expression into banned_patterns."
        )
    return tuple(words)


def _is_of_a_word(character: str) -> bool:
    return character.isalnum() or character == "_" or unicodedata.category(character).startswith("M")


def _is_visible(character: str) -> bool:
    return unicodedata.category(character) != "Cf"
