"""An exported policy is a plain model folder that says what the checkpoint says."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_core.checkpoints import export
from rlhf_core.checkpoints.export import export_policy
from rlhf_core.checkpoints.registry import Registry
from rlhf_core.checkpoints.verify import micro_inference
from rlhf_core.data.store import read_json
from rlhf_core.errors import CheckpointError, RunFolderError
from rlhf_core.runtime import stored_config


@pytest.mark.parametrize(("which", "step"), [("best", 1), ("current", 2), ("0", 0)])
def test_it_loads_with_the_plain_classes_and_its_card_names_run_step_configuration_and_score(
    run_folder, tmp_path, which, step
):
    Registry(run_folder).promote(1, 0.75)
    config = stored_config(run_folder.path)
    into = export_policy(run_folder, config, which, tmp_path / "out" / "model")
    model = AutoModelForCausalLM.from_pretrained(into, dtype=torch.float32)
    assert AutoTokenizer.from_pretrained(into).chat_template
    saved = read_json(run_folder.checkpoints / f"step-{step:06d}" / "state.json")
    assert micro_inference(model.eval()) == pytest.approx(saved["micro_inference"], abs=1e-4)
    card = (into / "README.md").read_text()
    assert card.startswith(f"# tiny, checkpoint {step}\n") and saved["config_sha256"] in card
    assert ("| held-out reward | 0.7500 |" in card) == (step == 1)
    assert [path.name for path in into.parent.iterdir()] == ["model"]


def test_a_folder_that_holds_something_is_refused_and_an_empty_one_taken(run_folder, tmp_path):
    config = stored_config(run_folder.path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    for into in (tmp_path / "full", tmp_path / "full" / "mine"):
        with pytest.raises(RunFolderError, match="is not empty"):
            export_policy(run_folder, config, "current", into)
    (tmp_path / "empty").mkdir()
    assert (export_policy(run_folder, config, "current", tmp_path / "empty") / "config.json").exists()


def test_a_damaged_or_missing_checkpoint_is_not_exported_and_leaves_nothing(run_folder, tmp_path):
    config = stored_config(run_folder.path)
    weights = run_folder.checkpoints / "step-000002" / "policy" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="is damaged"):
        export_policy(run_folder, config, "current", tmp_path / "out")
    for which in ("9", "newest"):
        with pytest.raises(CheckpointError, match=r"Give `best`, `current` or one of \[0, 1, 2\]"):
            export_policy(run_folder, config, which, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_copy_that_went_wrong_is_noticed(run_folder, tmp_path, monkeypatch):
    copy = export.shutil.copytree

    def badly(source, into):
        copy(source, into)
        (into / "config.json").write_text("{}")

    monkeypatch.setattr(export.shutil, "copytree", badly)
    with pytest.raises(CheckpointError, match=r"config\.json is not what was copied"):
        export_policy(run_folder, stored_config(run_folder.path), "current", tmp_path / "out")
    assert list(tmp_path.glob("*out*")) == []
