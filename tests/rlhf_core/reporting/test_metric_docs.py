"""docs/metrics.md names every metric of the sources."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
STAGES = "rollout|reward|validation|experience|update|control|data|reward_model|evaluation"
LITERAL = re.compile(rf'"((?:{STAGES})/[a-z][a-z0-9_]*)"')


def test_every_metric_that_the_sources_name_is_documented():
    documented = set(re.findall(rf"`((?:{STAGES})/[a-z0-9_]+)`", (ROOT / "docs" / "metrics.md").read_text()))
    named = {name for path in (ROOT / "rlhf_core").rglob("*.py") for name in LITERAL.findall(path.read_text())}
    assert sorted(named - documented) == []
