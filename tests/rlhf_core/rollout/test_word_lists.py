import pytest

from rlhf_core.errors import ConfigError
from rlhf_core.rollout.word_lists import read_phrases, read_replies


def test_a_list_has_a_word_or_phrase_a_line_and_remarks(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("\ufeff# rude\nDamn\n\n  go to hell \n", encoding="utf-8")
    assert read_phrases(path) == [("damn",), ("go", "to", "hell")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"\xff\xfe\xff", "cannot be read"),
        (b"# nothing\n", "has no banned word"),
        (b"fine\nc++\n", r"line 2: the banned word 'c\+\+' has signs"),
    ],
)
def test_a_bad_list_is_refused_with_its_line(tmp_path, content, message):
    path = tmp_path / "words.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_phrases(path)


def test_replies_are_read_by_prompt_and_a_later_line_wins(tmp_path):
    path = tmp_path / "replies.jsonl"
    path.write_text('{"prompt": "a", "response": "x"}\n\n{"prompt": "a", "response": "y"}\n')
    assert read_replies(path) == {"a": "y"}


@pytest.mark.parametrize("line", ["{", "[1]", '{"prompt": "a"}', '{"prompt": "a", "response": " "}'])
def test_a_bad_reply_is_refused_with_its_line(tmp_path, line):
    path = tmp_path / "replies.jsonl"
    path.write_text('{"prompt": "a", "response": "x"}\n' + line)
    with pytest.raises(ConfigError, match=r"replies\.jsonl, line 2"):
        read_replies(path)
