from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.data.transcripts import (
    Message,
    dialogue_prompt,
    format_transcript,
    opening,
    parse_transcript,
    prompt_messages,
    prompt_text,
    split_dialogue,
)
from rlhf_core.errors import DataError

word = st.text("abHuman: Assistant\n", min_size=1, max_size=20).map(str.strip)
said = word.filter(lambda text: text and "\n\nHuman:" not in text and "\n\nAssistant:" not in text)


def turns_of(contents: list[str]) -> list[Message]:
    return [Message(role=("user", "assistant")[n % 2], content=text) for n, text in enumerate(contents)]


@given(st.lists(said, min_size=1, max_size=7))
def test_parsing_inverts_formatting(contents):
    assert parse_transcript(format_transcript(turns_of(contents))) == turns_of(contents)


@given(st.lists(said, min_size=1, max_size=7).filter(lambda contents: len(contents) % 2 == 1))
def test_a_prompt_text_gives_its_messages_back(contents):
    assert prompt_messages(prompt_text(turns_of(contents))) == turns_of(contents)


def test_the_prompt_is_all_up_to_the_last_assistant_turn():
    text = "\n\nHuman: Hi.\n\nAssistant: Hello!\n\nHow are you?\n\nHuman: Fine.\n\nAssistant: Good."
    assert split_dialogue(text) == ("Human: Hi.\n\nAssistant: Hello!\n\nHow are you?\n\nHuman: Fine.", "Good.")
    assert dialogue_prompt(text) == split_dialogue(text)[0]
    assert dialogue_prompt("\n\nHuman: Hi.\n\nAssistant:") == "Hi."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Hello", "no dialogue: expected 'Human: …'"),
        ("", "no dialogue"),
        ("Intro\n\nHuman: a\n\nAssistant: b", "no dialogue"),
        ("\n\nAssistant: b", "turn 1 of 1 is Assistant's; expected Human's"),
        ("\n\nHuman: a\n\nHuman: b\n\nAssistant: c", "turn 2 of 3 is Human's"),
        ("\n\nHuman:\n\nAssistant: c", r"turn 1 of 2 \(Human\) is empty"),
        ("\n\nHuman: a", "last turn is Human's"),
        ("\n\nHuman: a\n\nAssistant: ", r"last turn \(Assistant\) is empty"),
    ],
)
def test_a_malformed_dialogue_is_refused_with_the_turn(text, message):
    with pytest.raises(DataError, match=message):
        split_dialogue(text)


def test_a_dialogue_that_asks_nothing_is_refused():
    with pytest.raises(DataError, match="last human turn is empty"):
        dialogue_prompt("\n\nHuman: a\n\nAssistant: b\n\nHuman: ")


@pytest.mark.parametrize(
    "text", ["Explain:\n\nHuman: a\n\nAssistant: b\n\nHuman: c", "Human: a", "Human: a\n\nAssistant: b"]
)
def test_a_plain_prompt_that_quotes_a_dialogue_stays_one_turn(text):
    assert prompt_messages(text) == [Message(role="user", content=text)]


def test_the_opening_ignores_case_and_spacing_and_later_turns():
    assert opening("Human: How  ARE you?\n\nAssistant: b\n\nHuman: c") == opening("how are you?") == "how are you?"
