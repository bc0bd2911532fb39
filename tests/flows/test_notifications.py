"""A whole run tells people once of what ended it, and an operator can try the channel before."""

from __future__ import annotations

import pytest
from prefect.blocks.system import Secret

from flows.post_training import post_training
from rlhf_core.data.json_lines import read_json_lines
from rlhf_core.data.store import RunFolder
from rlhf_core.errors import DataError
from tests.flows.tiny_run import CALLS, scored_by, settings, write_config
from tests.receiver import SECRET, receiver

URLS = {"urls_from": {"env": ["RLHF_TEST_URL"]}, "timeout_seconds": 2.0}


def test_a_run_that_fails_tells_once_for_each_attempt(world, tmp_path, monkeypatch):
    monkeypatch.setenv(CALLS, str(tmp_path / "calls"))
    content = settings(world, tmp_path, reward=scored_by("never_works"), notifications=URLS)
    config = str(write_config(tmp_path, content))
    with receiver() as kept:
        monkeypatch.setenv("RLHF_TEST_URL", kept.url)
        for number in (1, 2):
            with pytest.raises(DataError, match="no column `score`"):
                post_training(config=config, resume=number > 1)
            assert len(kept.messages) == number
    folder = RunFolder(tmp_path / "tiny")
    first = kept.messages[0]
    assert first["title"].startswith("rlhf: tiny failed")
    assert "error: DataError\nwhat: the scorer's table has no column `score`; add it." in first["message"]
    assert f"rlhf resume {folder.path}" in first["message"]
    assert f"report: {folder.report}" in first["message"]
    assert "/runs/flow-run/" in first["message"]
    log = first["message"].partition("end of the log:\n")[2]
    assert "no column `score`" in log
    assert [row["attempt"] for row in read_json_lines(folder.notifications)] == [1, 2]
    texts = [path for path in folder.path.rglob("*") if path.suffix in {".jsonl", ".yaml", ".json", ".html"}]
    assert not [path for path in texts if SECRET in path.read_text()]


def test_a_channel_that_hangs_changes_nothing_of_a_run_that_completes(world, tmp_path, monkeypatch, caplog):
    content = settings(world, tmp_path, rounds=1, notifications=URLS | {"timeout_seconds": 0.5})
    with receiver(hangs=True) as kept:
        monkeypatch.setenv("RLHF_TEST_URL", kept.url)
        outcome = post_training(config=str(write_config(tmp_path, content)))
    assert outcome.report.exists()
    assert [message["title"].split(" (")[0] for message in kept.messages][-1:] == ["rlhf: tiny is complete"]
    assert "no answer within 0.5 s" in caplog.text
    assert SECRET not in caplog.text


def test_an_operator_tries_the_channel_of_a_secret_block(rlhf, world, tmp_path):
    sources = {"urls_from": {"prefect_secrets": ["test-channel"]}}
    config = write_config(tmp_path, settings(world, tmp_path, notifications=sources))
    with receiver() as kept:
        Secret(value=kept.url).save("test-channel", overwrite=True)
        code, out, _ = rlhf("notify-test", config)
    assert code == 0
    assert out == "Prefect Secret block test-channel: sent\n"
    (message,) = kept.messages
    assert message["title"] == "rlhf: test of the notifications of tiny"


def test_a_channel_that_does_not_work_is_said_at_the_test(rlhf, world, tmp_path, monkeypatch):
    config = write_config(tmp_path, settings(world, tmp_path, notifications=URLS))
    monkeypatch.delenv("RLHF_TEST_URL", raising=False)
    code, _, err = rlhf("notify-test", config)
    assert (code, "RLHF_TEST_URL is not set" in err) == (13, True)
    monkeypatch.setenv("RLHF_TEST_URL", f"json://127.0.0.1:1/{SECRET}")
    code, out, err = rlhf("notify-test", config)
    assert (code, "cannot be reached" in err) == (13, True)
    assert SECRET not in out + err
    code, _, err = rlhf("notify-test", write_config(tmp_path, settings(world, tmp_path)))
    assert (code, "names no channel" in err) == (2, True)


def test_an_address_in_the_configuration_is_refused_and_not_repeated(rlhf, world, tmp_path):
    sources = {"urls_from": {"env": [f"json://127.0.0.1/{SECRET}"]}}
    code, out, err = rlhf("check", write_config(tmp_path, settings(world, tmp_path, notifications=sources)))
    assert code == 2
    assert "notifications.urls_from.env.0" in err
    assert "environment variable" in err
    assert SECRET not in out + err
