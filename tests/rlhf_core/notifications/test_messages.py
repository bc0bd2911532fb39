"""What a person reads: the facts, the action, what to do; bounded."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from rlhf_core.config.notifications import NotificationKind
from rlhf_core.notifications.messages import MAX_MESSAGE_CHARACTERS, MAX_TAIL_CHARACTERS, Happening, compose


def test_a_failure_says_what_happened_what_was_done_and_what_to_type():
    message = compose(
        Happening(
            kind="failure",
            run="tiny",
            folder=Path("/runs/tiny"),
            attempt=2,
            message="memory ran out in the update",
            step="iteration 3: experience done",
            error="OutOfMemory",
            log_tail=["one", "two"],
            report=Path("/runs/tiny/report.html"),
            link="http://127.0.0.1:4200/runs/flow-run/1",
        )
    )
    assert message.title == "rlhf: tiny failed (iteration 3: experience done)"
    assert message.text.splitlines() == [
        "run: tiny",
        "step: iteration 3: experience done",
        "attempt: 2",
        "error: OutOfMemory",
        "what: memory ran out in the update",
        "action taken: the run has ended; what it had finished is kept",
        "asked of you: mend the cause, then: rlhf resume /runs/tiny",
        "in the UI: http://127.0.0.1:4200/runs/flow-run/1",
        "report: /runs/tiny/report.html",
        "folder: /runs/tiny",
        "",
        "end of the log:",
        "one",
        "two",
    ]


@pytest.mark.parametrize("kind", get_args(NotificationKind))
def test_each_kind_says_what_was_done_and_gives_a_command(kind):
    text = compose(Happening(kind=kind, run="a", folder=Path("/a"), attempt=1, message="m", action="")).text
    assert "action taken: " in text
    assert "rlhf " in next(line for line in text.splitlines() if line.startswith("asked of you"))


def test_long_texts_are_cut_at_the_end_that_matters_less():
    happening = Happening(
        kind="retry", run="a", folder=Path("/a"), attempt=1, message="B" + "x" * 9999, log_tail=["x" * 9999 + "E"]
    )
    text = compose(happening).text
    assert "what: B" in text
    assert text.endswith("E")
    assert len(text) < MAX_MESSAGE_CHARACTERS + MAX_TAIL_CHARACTERS + 400


def test_no_piece_of_a_secret_is_left_at_a_cut():
    secret = "0123456789abcdef"
    for shift in range(20):
        padding = "x" * (MAX_MESSAGE_CHARACTERS - shift)
        said = compose(
            Happening(
                kind="failure",
                run="a",
                folder=Path("/a"),
                attempt=1,
                message=padding + secret,
                log_tail=[secret + "y" * (MAX_TAIL_CHARACTERS - shift)],
            ),
            [secret],
        ).text
        assert not any(secret[start : start + 6] in said for start in range(10))
