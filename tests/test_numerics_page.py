"""docs/numerics.md names code, tests and settings that exist, and a code place and a test for every quantity."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel

from rlhf_core.config.run import RunConfig

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"`([^`\n]+)`", PAGE)


def exists(key: str) -> bool:
    """Whether a dotted setting leads to a field."""
    model: object = RunConfig
    for name in key.split("."):
        if not (isinstance(model, type) and issubclass(model, BaseModel) and name in model.model_fields):
            return False
        model = model.model_fields[name].annotation
    return True


def test_every_path_named_exists():
    paths = [word for word in QUOTED if re.match(r"(rlhf_core|tests|benchmarks)/", word)]
    assert len(paths) > 40
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_setting_named_exists():
    keys = [word.split(":")[0] for word in QUOTED if re.match(r"(reward|algorithm|ppo)\.[a-z_.]+(:|$)", word)]
    assert len(keys) > 15
    assert [key for key in keys if not exists(key)] == []


def test_every_quantity_names_its_code_and_its_tests():
    quantities = PAGE.split("## What others do")[0].split("\n### ")[1:]
    assert len(quantities) > 12
    assert [text.splitlines()[0] for text in quantities if "\n- Code: " not in text or "Tests:" not in text] == []
