"""What happened → what a person reads: title and text, bounded, without secrets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlhf_core.config.notifications import NotificationKind
from rlhf_core.notifications.redaction import redact

MAX_MESSAGE_CHARACTERS = 1500
"""Of what is quoted: an error's message or reasons; its end is cut."""
MAX_TAIL_CHARACTERS = 2000
"""Of the log's end; its beginning is cut. Slack and DingTalk cut longer messages themselves, without saying so."""

TITLES: dict[NotificationKind, str] = {
    "failure": "failed",
    "crash": "lost its process",
    "retry": "tries again",
    "rollback": "rolled back",
    "stop": "stopped",
    "completion": "is complete",
}
ACTIONS: dict[NotificationKind, str] = {
    "failure": "the run has ended; what it had finished is kept",
    "crash": "the run goes on from its last finished stage",
    "retry": "the stage is done again from the last checkpoint",
    "rollback": "the run goes on from the last promoted checkpoint, more carefully",
    "stop": "the run ends; the best policy so far is kept",
    "completion": "none; the run has done all its rounds",
}
ADVICE: dict[NotificationKind, str] = {
    "failure": "mend the cause, then: rlhf resume {folder}",
    "crash": "nothing for one; if it recurs, look at the machine (memory, disk): rlhf status {folder}",
    "retry": "nothing now; if it recurs, look at the cause: rlhf status {folder}",
    "rollback": "nothing for one; after several, lower ppo.actor.learning_rate or look at the reward model: "
    "rlhf report {folder}",
    "stop": "read the reasons: rlhf report {folder}",
    "completion": "read the report, take the policy from {folder}/best: rlhf report {folder}",
}


@dataclass(frozen=True)
class Happening:
    """What happened to a run."""

    kind: NotificationKind
    run: str
    folder: Path
    attempt: int
    """Tells apart happenings of one kind: the attempt's number, or the round's for a rollback."""
    message: str
    """The error's message, or the reasons."""
    step: str = ""
    """Where the run stands, in words."""
    error: str = ""
    """Type or class of the error."""
    action: str = ""
    """What the run does about it; left empty, what it always does."""
    log_tail: Sequence[str] = ()
    report: Path | None = None
    link: str = ""
    """Of the flow run in the Prefect UI."""

    @property
    def key(self) -> tuple[str, int, str]:
        """A person is told once of each."""
        return self.run, self.attempt, self.kind


@dataclass(frozen=True)
class Message:
    title: str
    text: str

    def without(self, secrets: Iterable[str]) -> Message:
        """Safe to send: secrets, and what looks like one, are hidden."""
        known = tuple(secrets)
        return replace(self, title=redact(self.title, known), text=redact(self.text, known))


def compose(happening: Happening, secrets: Iterable[str] = ()) -> Message:
    """The message of what happened.

    Texts are redacted before they are cut, so that no half of a secret is left at a cut.

    Args:
        happening: to tell of.
        secrets: values that must not be in it; what looks like a secret is hidden in any case.
    """
    known = tuple(secrets)
    said = _cut_end(redact(happening.message, known), MAX_MESSAGE_CHARACTERS)
    lines = [
        ("run", happening.run),
        ("step", happening.step),
        ("attempt", str(happening.attempt)),
        ("error", happening.error),
        ("why" if happening.kind in ("rollback", "stop") else "what", said),
        ("action taken", happening.action or ACTIONS[happening.kind]),
        ("asked of you", ADVICE[happening.kind].format(folder=happening.folder)),
        ("in the UI", happening.link),
        ("report", str(happening.report) if happening.report else ""),
        ("folder", str(happening.folder)),
    ]
    text = "\n".join(f"{name}: {value}" for name, value in lines if value)
    if happening.log_tail:
        text += "\n\nend of the log:\n" + _cut_beginning(
            redact("\n".join(happening.log_tail), known), MAX_TAIL_CHARACTERS
        )
    where = f" ({happening.step})" if happening.step else ""
    return Message(title=f"rlhf: {happening.run} {TITLES[happening.kind]}{where}", text=text).without(known)


def _cut_end(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 2] + " …"


def _cut_beginning(text: str, most: int) -> str:
    return text if len(text) <= most else "… " + text[-(most - 2) :]
