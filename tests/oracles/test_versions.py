"""What was compared is what docs/numerics.md says was compared."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "numerics.md"


def test_the_page_names_the_versions_that_are_tested_here():
    page = PAGE.read_text(encoding="utf-8")
    for package in ("verl", "torchrl"):
        assert f"{package} {version(package)}" in page
