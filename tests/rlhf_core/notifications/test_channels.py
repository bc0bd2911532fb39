"""Messages arrive once, and nothing that is wrong with a channel disturbs a run or tells its address."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from rlhf_core.config.notifications import NotificationConfig
from rlhf_core.data.json_lines import read_json_lines
from rlhf_core.data.store import RunFolder
from rlhf_core.notifications.channels import Channel, channels_from_environment, notify, send
from rlhf_core.notifications.messages import Happening, Message
from tests.receiver import SECRET, receiver

CONFIG = NotificationConfig.model_validate({"urls_from": {"env": ["A_URL", "B_URL"]}, "timeout_seconds": 1.0})


def happening(folder: Path, kind: str = "failure", attempt: int = 1) -> Happening:
    return Happening(kind=kind, run="tiny", folder=folder, attempt=attempt, message="it broke", error="EngineError")


def test_each_run_attempt_and_kind_is_told_once_and_a_restart_does_not_forget(tmp_path):
    with receiver() as kept:
        for _ in range(2):  # nothing is kept in memory: a second process reads the same file
            for kind in ("failure", "retry"):
                for attempt in (1, 2):
                    notify(
                        RunFolder(tmp_path), happening(tmp_path, kind, attempt), CONFIG, [Channel("A_URL", kept.url)]
                    )
    assert len(kept.messages) == 4
    assert "tiny failed" in kept.messages[0]["title"]
    assert "it broke" in kept.messages[0]["message"]
    rows = read_json_lines(RunFolder(tmp_path).notifications)
    assert [(row["kind"], row["attempt"], row["delivered"]) for row in rows] == [
        ("failure", 1, 1),
        ("failure", 2, 1),
        ("retry", 1, 1),
        ("retry", 2, 1),
    ]
    assert SECRET not in RunFolder(tmp_path).notifications.read_text()


def test_kinds_that_are_not_wanted_are_not_told(tmp_path):
    config = CONFIG.model_copy(update={"kinds": ("failure",)})
    with receiver() as kept:
        notify(RunFolder(tmp_path), happening(tmp_path, "completion"), config, [Channel("A_URL", kept.url)])
    assert not kept.messages
    assert not RunFolder(tmp_path).notifications.exists()


def test_a_message_that_nobody_took_may_be_told_again(tmp_path):
    with receiver(status=500) as refusing:
        notify(RunFolder(tmp_path), happening(tmp_path), CONFIG, [Channel("A_URL", refusing.url)])
    with receiver() as kept:
        notify(RunFolder(tmp_path), happening(tmp_path), CONFIG, [Channel("A_URL", kept.url)])
    assert len(kept.messages) == 1
    assert [row["delivered"] for row in read_json_lines(RunFolder(tmp_path).notifications)] == [0, 1]


def test_a_receiver_that_hangs_costs_the_timeout_and_holds_up_no_other(tmp_path, caplog):
    with receiver(hangs=True) as hanging, receiver() as kept:
        started = time.monotonic()
        channels = [Channel("A_URL", hanging.url), Channel("B_URL", kept.url)]
        notify(RunFolder(tmp_path), happening(tmp_path), CONFIG, channels)
        assert time.monotonic() - started < 2.5
    assert len(kept.messages) == 1
    (warning,) = warnings_of(caplog)
    assert "A_URL" in warning
    assert "The run goes on" in warning


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        (f"json://127.0.0.1:1/{SECRET}", "refused it or cannot be reached"),
        (f"no-such-service://{SECRET}", "no Apprise URL"),
        (SECRET, "no Apprise URL"),
        (f"slack://{SECRET}", "no Apprise URL"),
        (f"json://[{SECRET}", "no Apprise URL"),
    ],
)
def test_a_wrong_address_gives_a_warning_without_the_address(tmp_path, caplog, capfd, url, fault):
    caplog.set_level(logging.DEBUG)
    logging.getLogger("apprise").setLevel(logging.DEBUG)
    logging.getLogger("urllib3").setLevel(logging.DEBUG)
    notify(RunFolder(tmp_path), happening(tmp_path), CONFIG, [Channel("A_URL", url)])
    (warning,) = warnings_of(caplog)
    assert fault in warning
    said = caplog.text + "".join(capfd.readouterr()) + RunFolder(tmp_path).notifications.read_text()
    assert SECRET not in said


def test_an_address_is_not_logged_where_it_works_either(caplog):
    caplog.set_level(logging.DEBUG)
    with receiver() as kept:
        channel = Channel("A_URL", kept.url)
        assert [one.fault for one in send(Message("title", "text"), [channel], 5.0)] == [""]
    assert SECRET not in caplog.text + repr(channel)


def test_the_message_holds_neither_an_address_nor_a_secret_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SCORER_API_KEY", "key-0123456789")
    with receiver() as kept:
        told = Happening(
            kind="failure",
            run="tiny",
            folder=tmp_path,
            attempt=1,
            message=f"POST {kept.url} failed",
            log_tail=["sent key-0123456789"],
        )
        notify(RunFolder(tmp_path), told, CONFIG, [Channel("A_URL", kept.url)])
    (message,) = kept.messages
    assert SECRET not in str(message)
    assert "key-0123456789" not in str(message)
    assert "POST" in message["message"]


def test_a_variable_that_is_not_set_is_a_fault_and_one_may_hold_several_addresses():
    channels, faults = channels_from_environment(CONFIG, {"B_URL": "json://a json://b"})
    assert [channel.url for channel in channels] == ["json://a", "json://b"]
    (fault,) = faults
    assert "A_URL is not set" in fault


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
