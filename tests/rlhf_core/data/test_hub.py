"""Rows of a hub data set; a folder named as one stands in for it, since the datasets library reads both by one call."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_core.config.data import SourceConfig
from rlhf_core.data.hub import hub_rows
from rlhf_core.errors import DataError


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The place of `hub:owner/name`."""
    place = tmp_path / "owner" / "name"
    place.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return place


def prompts(**settings: object) -> list[str]:
    source = SourceConfig.model_validate({"path": "hub:owner/name", **settings})
    return [str(row["prompt"]) for _, row in hub_rows(source)]


def test_a_subset_is_read_by_its_name(folder):
    for name in ("small", "large"):
        (folder / f"{name}.jsonl").write_text(f'{{"prompt": "of the {name}"}}\n')
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: small\n  data_files: small.jsonl\n  default: true\n"
        "- config_name: large\n  data_files: large.jsonl\n---\n"
    )
    assert prompts() == ["of the small"]
    assert prompts(subset="large") == ["of the large"]
    with pytest.raises(DataError, match=r"hub:owner/name \(subset huge, split train\) cannot be loaded"):
        prompts(subset="huge")


def test_with_a_limit_no_more_is_read_than_is_needed(folder):
    """The second file cannot be read, and with a limit it need not be."""
    (folder / "train-0.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    (folder / "train-1.jsonl").write_text("no JSON at all\n")
    assert prompts(limit=2) == ["a", "b"]
    with pytest.raises(DataError, match="cannot be loaded"):
        prompts()
