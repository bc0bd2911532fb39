"""A run's settings stay; only recovery and the gate that refused its reward model may change."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_core.config.run import RunConfig
from rlhf_core.data.reward_model_record import VALIDATION, RewardModelRecord, RewardModelValidation, Share
from rlhf_core.data.store import RunFolder, write_json
from rlhf_core.errors import RunFolderError
from rlhf_core.recovery.changed_settings import accepted_changes

SHARE = Share(value=0.6, low=0.5, high=0.7, pairs=100)
MEASURED = RewardModelValidation(
    accuracy=SHARE,
    by_domain={"general": SHARE},
    length_correlation=0.0,
    length_correlation_low=-0.1,
    length_correlation_high=0.1,
    shorter_preferred_accuracy=SHARE,
    longer_wins_accuracy=SHARE,
    word_baseline_accuracy=None,
    score_mean=0.0,
    score_std=1.0,
    confidence=0.95,
)


def config(**changes: object) -> RunConfig:
    base = {"name": "x", "data": {"prompts": [{"path": "p"}], "preferences": {"train": [{"path": "q"}]}}}
    return RunConfig.model_validate(base | {"model": {"policy": "m"}, "ppo": {"ptx": {"enabled": False}}} | changes)


def gate(**limits: float) -> dict[str, object]:
    return {"reward_model": {"gate": limits}}


def judge(folder: RunFolder, *failures: str) -> None:
    """Leave the record of a reward model that the gate refused, or accepted where nothing failed."""
    record = RewardModelRecord(**MEASURED.model_dump(), key="k", path=Path("m"), failures=failures)
    write_json(folder.reward_model / VALIDATION, record.model_dump(mode="json"))


def test_equal_settings_change_nothing(tmp_path):
    assert accepted_changes(RunFolder(tmp_path), config(), config()) == {}


@pytest.mark.parametrize("is_refused", [True, False], ids=["refused", "not judged yet"])
def test_until_a_model_is_accepted_the_gate_may_change(is_refused, tmp_path):
    folder = RunFolder(tmp_path)
    if is_refused:
        judge(folder, "accuracy 0.6 is below reward_model.gate.min_accuracy=0.7")
    found = accepted_changes(folder, config(**gate(min_accuracy=0.7)), config(**gate(min_accuracy=0.6, max_pairs=50)))
    assert found == {"reward_model.gate.min_accuracy": (0.7, 0.6), "reward_model.gate.max_pairs": (None, 50)}


def test_an_accepted_models_gate_stays(tmp_path):
    folder = RunFolder(tmp_path)
    judge(folder)
    with pytest.raises(RunFolderError, match=r"has been accepted.*\(reward_model\.gate\.min_accuracy\)"):
        accepted_changes(folder, config(), config(**gate(min_accuracy=0.9)))


def test_how_a_run_recovers_who_is_told_and_where_ranks_run_may_change_at_any_time(tmp_path):
    folder = RunFolder(tmp_path)
    judge(folder)
    cluster = {"engine": "ray", "ranks": 4}
    found = accepted_changes(
        folder, config(), config(recovery={"max_lost": 12}, cluster=cluster, notifications={"log_tail_lines": 3})
    )
    assert found["recovery.max_lost"] == (5, 12)
    assert found["cluster.ranks"] == (1, 4)
    assert found["notifications.log_tail_lines"][1] == 3


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"seed": 5}, "seed"),
        ({"reward_model": {"train": {"epochs": 3}}}, r"reward_model\.train\.epochs"),
        ({"seed": 5} | gate(min_accuracy=0.6), r"differ in: seed\)"),
    ],
)
def test_any_other_setting_is_refused_by_its_name(changes, name, tmp_path):
    folder = RunFolder(tmp_path)
    judge(folder, "too bad")
    with pytest.raises(RunFolderError, match=rf"other settings.*{name}"):
        accepted_changes(folder, config(), config(**changes))
