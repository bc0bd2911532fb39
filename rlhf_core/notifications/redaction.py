"""Secrets taken out of a text before it leaves the machine or goes into a log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote, urlsplit

HIDDEN = "‹hidden›"
SHORTEST_SECRET = 6
"""A shorter value is no secret, and hiding it would hide common words."""

_NAME_OF_A_SECRET = re.compile(r"token|secret|passw|api_?key|access_?key|private_?key|credential|auth", re.IGNORECASE)
_PATTERNS = (
    re.compile(r"(?<=://)[^\s/@]+(?=@)"),
    re.compile(r"https://hooks\.slack\.com/\S+"),
    re.compile(r"(?i)(?<=bearer )[\w.~+/=-]{6,}"),
    re.compile(r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|pnu_|pnb_|AKIA)[\w-]{6,}"),
    re.compile(
        r"(?i)(?:(?<=password)|(?<=passwd)|(?<=secret)|(?<=token)|(?<=api_key)|(?<=api-key)|(?<=access_key))"
        r"[\"']?\s*[=:]\s*[\"']?(?![\d.eE+-]+(?:[\s,;]|$))[^\s\"',;&]+"  # "nats per token: 0.1" is no secret
    ),
)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without the given secrets, and without what looks like one: passwords in URLs, tokens, `password=…`."""
    for secret in sorted({one for one in secrets if len(one) >= SHORTEST_SECRET}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    for pattern in _PATTERNS:
        text = pattern.sub(HIDDEN, text)
    return text


def parts_of_url(url: str) -> set[str]:
    """The URL and what of it may be secret: user, password, host (often a token), path segments, query values."""
    schema, _, rest = url.partition("://")
    parts = {url, rest, *re.split(r"[/:@?&=,]", rest)} if schema and rest else {url}
    try:
        split = urlsplit(url)
        parts |= {split.netloc, split.path, split.query, split.username or "", split.password or ""}
    except ValueError:  # a malformed address; its pieces above suffice
        pass
    return {one for part in parts for one in (part, unquote(part)) if len(one) >= SHORTEST_SECRET}


def secrets_in(environment: Mapping[str, str]) -> set[str]:
    """Values of the variables whose names say that they are secret."""
    return {value for name, value in environment.items() if _NAME_OF_A_SECRET.search(name)}
