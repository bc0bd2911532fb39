"""Dialogues as text: `Human: …`, a blank line, `Assistant: …` (the form of Anthropic's hh-rlhf).

A prompt is kept as one text everywhere: a single user turn as it is, several turns as such a dialogue that ends with
the human's turn. `prompt_messages` turns it back into messages, so no table needs a second column.
"""

from __future__ import annotations

import re
from typing import TypedDict

from rlhf_core.errors import DataError

_TURN = re.compile(r"(?:\A|\n\n)(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}
_SPEAKERS = {role: speaker for speaker, role in _ROLES.items()}


class Message(TypedDict):
    """One turn, as chat templates take it; `role` is system, user or assistant."""

    role: str
    content: str


def parse_transcript(text: str) -> list[Message]:
    """The turns of a dialogue, without surrounding white space.

    Raises:
        DataError: the text does not start with `Human:`, a speaker has two turns in a row, or a turn before the last
            is empty.
    """
    parts = _TURN.split(text.strip())
    if parts[0].strip() or len(parts) < 3:
        raise DataError(f"no dialogue: expected 'Human: …' at the start, found {text.strip()[:40]!r}")
    spoken = zip(parts[1::2], parts[2::2], strict=True)
    turns = [Message(role=_ROLES[speaker], content=said.strip()) for speaker, said in spoken]
    for number, turn in enumerate(turns, start=1):
        expected = "user" if number % 2 else "assistant"
        if turn["role"] != expected:
            found, wanted = _SPEAKERS[turn["role"]], _SPEAKERS[expected]
            raise DataError(f"turn {number} of {len(turns)} is {found}'s; expected {wanted}'s")
        if not turn["content"] and number < len(turns):
            raise DataError(f"turn {number} of {len(turns)} ({_SPEAKERS[turn['role']]}) is empty")
    return turns


def format_transcript(messages: list[Message]) -> str:
    """The inverse of `parse_transcript`."""
    return "\n\n".join(f"{_SPEAKERS[turn['role']]}: {turn['content']}" for turn in messages)


def split_dialogue(text: str) -> tuple[str, str]:
    """A dialogue's prompt (all up to the last assistant turn) and that turn.

    Raises:
        DataError: it is malformed, or the last turn is not the assistant's, or is empty.
    """
    turns = parse_transcript(text)
    if turns[-1]["role"] != "assistant":
        raise DataError("the last turn is Human's; expected Assistant's")
    if not turns[-1]["content"]:
        raise DataError("the last turn (Assistant) is empty")
    return prompt_text(turns[:-1]), turns[-1]["content"]


def dialogue_prompt(text: str) -> str:
    """The prompt of a dialogue: all up to its last human turn.

    Raises:
        DataError: it is malformed or has no words.
    """
    turns = parse_transcript(text)
    if turns[-1]["role"] == "assistant":
        turns = turns[:-1]
    if not turns[-1]["content"]:
        raise DataError("the last human turn is empty")
    return prompt_text(turns)


def prompt_text(messages: list[Message]) -> str:
    """A prompt as one text: a single user turn as it is, several as a dialogue."""
    return messages[0]["content"] if len(messages) == 1 else format_transcript(messages)


def prompt_messages(prompt: str) -> list[Message]:
    """The messages of a prompt as `prompt_text` wrote it; a text that is no whole dialogue is one user turn."""
    if len(_TURN.findall(prompt)) > 1:
        try:
            turns = parse_transcript(prompt)
        except DataError:
            turns = []  # A plain prompt that merely quotes a dialogue.
        if len(turns) > 1 and turns[-1]["role"] == "user" and turns[-1]["content"]:
            return turns
    return [Message(role="user", content=prompt)]


def opening(prompt: str) -> str:
    """What decides on which side of a split a dialogue stands: its first user turn, in one case and spacing."""
    return " ".join(prompt_messages(prompt)[0]["content"].split()).casefold()
