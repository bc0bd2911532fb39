"""Sizes that keep the code readable (STYLE: short files, short functions), and the features table's completeness."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = [
    path
    for name in ("rlhf_core", "tasks", "flows", "deployments", "benchmarks", "examples")
    for path in (ROOT / name).rglob("*.py")
]
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 50


def test_no_file_is_longer_than_a_person_reads_at_once():
    long = {
        str(path.relative_to(ROOT)): n for path in SOURCES if (n := len(path.read_text().splitlines())) > MAX_FILE_LINES
    }
    assert not long


def test_no_function_is_longer_than_a_screen():
    long = {
        f"{path.relative_to(ROOT)}:{node.name}": size
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (size := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert not long


def test_every_module_says_what_it_is():
    silent = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if path.read_text().strip() and ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert not silent


def test_the_first_sentence_of_the_layers_holds():
    """The core never imports Prefect, not even lazily."""
    offenders = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "rlhf_core").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "prefect" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "prefect")
    ]
    assert not offenders
