"""The pages for people say what is there: features, cases and events against the sources."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from rlhf_core.config.run import RunConfig

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")
LAYERS = ("rlhf_core", "tasks", "flows", "deployments", "benchmarks", "examples", "docs", "tests")
GROUPS = {"R": 7, "A": 7, "P": 13, "K": 4, "C": 7, "G": 6, "W": 3, "D": 4, "E": 5, "F": 8, "V": 5, "S": 17, "L": 13}
FEATURES = {f"{group}{number}" for group, count in GROUPS.items() for number in range(1, count + 1)}
FEATURES |= {"15.1", "15.2", "15.3", "15.4"}
CASES = {f"{group}{n:02}" for group, count in {"N": 12, "E": 9, "K": 9, "C": 7}.items() for n in range(1, count + 1)}


def rows(header: str) -> list[list[str]]:
    """Cells of every table whose first column is called `header`."""
    found: list[list[str]] = []
    is_inside = False
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
        if not line.startswith("|"):
            is_inside = False
        elif cells[0] == header:
            is_inside = True
        elif is_inside and set(cells[0]) != {"-"}:
            found.append(cells)
    return found


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def named_tests(cell: str) -> list[str]:
    return [word for word in quoted(cell) if word.startswith("tests/")]


def exists(place: str) -> bool:
    """Whether a path exists; `path::function` also needs the function in it."""
    path, _, function = place.partition("::")
    file = ROOT / path
    return file.exists() and (not function or f"def {function}(" in file.read_text(encoding="utf-8"))


def has_setting(model: type[BaseModel], key: str) -> bool:
    """Whether a dotted key leads to a field, through optional and repeated sections."""
    name, _, rest = key.partition(".")
    if name not in model.model_fields:
        return False
    section = _section(model.model_fields[name].annotation)
    return not rest or (section is not None and has_setting(section, rest))


def _section(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for one in get_args(annotation) if (found := _section(one)) is not None), None)


def test_every_feature_and_case_stands_once():
    assert Counter(row[0] for row in rows("ID")) == Counter(FEATURES)
    assert Counter(row[0] for row in rows("case")) == Counter(CASES)


def test_every_path_named_exists():
    places = [word for word in quoted(PAGE) if word.split("/")[0] in LAYERS and "/" in word]
    assert len(places) > 100
    assert [place for place in places if not exists(place)] == []


def test_every_setting_named_exists():
    cells = [word for row in rows("ID") for word in quoted(row[3])]
    keys = [word for word in cells if re.fullmatch(r"[a-z_]+(\.[a-z_]+)*", word) and word != "rlhf"]
    assert len(keys) > 40
    assert [key for key in keys if not has_setting(RunConfig, key)] == []


def test_a_state_is_one_of_three_and_what_is_done_has_its_test():
    for name, _, where, _, test, state in rows("ID"):
        assert state in ("done", "planned") or re.match(r"partly: \S", state), f"{name}: {state!r}"
        assert (where == "—") == (state == "planned"), f"{name} is {state}, and lives in {where}"
        assert state != "done" or named_tests(test), f"{name} is called done without a test"


def test_the_cases_are_listed_where_their_tests_are():
    files = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")
    }
    for case, _, test, _ in rows("case"):
        named = {name for name, text in files.items() if re.search(rf"^def test_case_{case}_", text, re.MULTILINE)}
        assert set(named_tests(test)) == named, case
        assert named or test == "none yet", case


def test_every_kind_of_event_is_explained_to_the_operator():
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    sources = [path.read_text(encoding="utf-8") for layer in LAYERS[:3] for path in (ROOT / layer).rglob("*.py")]
    recorded = {kind for text in sources for kind in re.findall(r'record_event\(\s*[\w.]+,\s*"(\w+)"', text)}
    assert len(recorded) > 10
    assert recorded <= explained
