"""Each filter by itself, and their chain."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.config.rejection import RejectionConfig
from rlhf_core.rollout.filters import (
    BannedWords,
    FilterChain,
    RewardFilter,
    RuleFilter,
    SafetyFilter,
    is_invalid_text,
    rule_filters,
)


def row(text: str = "a b c", ids: list[int] | None = None, finish_reason: str = "eos") -> dict[str, Any]:
    ids = [1, 2, 3, 4] if ids is None else ids
    ending = "truncated" if finish_reason == "length" else "natural"
    return {"prompt": "?", "response": text, "response_ids": ids, "finish_reason": finish_reason, "ending": ending}


def reason(config: RejectionConfig, response: dict[str, Any]) -> str | None:
    return FilterChain(rule_filters(config)).reasons([response])[0]


@pytest.mark.parametrize(
    ("response", "want"),
    [
        (row(), None),
        (row("say Bad"), None),
        (row("say bad"), "banned"),
        (row("say WORSE"), "banned_word"),
        (row("", ids=[9]), "too_short"),
        (row("a", ids=[1, 9]), "too_short"),
        (row("a b", ids=[1, 2], finish_reason="length"), None),
        (row("  \n"), "invalid"),
        (row("����"), "invalid"),
        (row(ids=[1] * 20), "repetitive"),
    ],
)
def test_each_fault_has_its_reason(response, want):
    config = RejectionConfig(
        banned_patterns=("bad",), banned_words=("worse",), min_response_tokens=2, max_repeated_ngram_fraction=0.5
    )
    assert reason(config, response) == want


def test_a_limit_of_one_never_calls_a_text_repetitive():
    assert reason(RejectionConfig(max_repeated_ngram_fraction=1.0), row(ids=[1] * 50)) is None


def test_half_a_last_character_is_no_fault_of_a_cut_text():
    assert not is_invalid_text("caf�", is_cut=True)
    assert is_invalid_text("caf�", is_cut=False)
    assert not is_invalid_text("line\n\tline", is_cut=False)


@pytest.mark.parametrize(
    ("entry", "text", "stands"),
    [
        ("ass", "a class of its own", False),
        ("ass", "you ASS!", True),
        ("straße", "the STRASSE is long", True),
        ("café", "cafe\u0301 au lait", True),
        ("cafe", "café", False),
        ("bad", "b\u00adad and b\u200bad", True),
        ("bad", "ｂａｄ", True),
        ("go-to hell", "Go to\n HELL.", True),
        ("go to hell", "go to the hell", False),
        ("don't", "I don’t know", True),
        ("हिन्दी", "हिन्दी भाषा", True),
        ("हिन्द", "हिन्दी भाषा", False),
    ],
)
def test_a_banned_word_is_found_whole_in_any_case_and_form(entry, text, stands):
    assert reason(RejectionConfig(banned_words=(entry,)), row(text)) == ("banned_word" if stands else None)


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3), max_size=6), st.text("abc ", max_size=20))
def test_phrases_are_found_where_a_search_of_every_place_finds_them(phrases, text):
    words = text.split()
    want = any(words[i : i + len(phrase)] == phrase for phrase in phrases for i in range(len(words)))
    assert BannedWords([tuple(phrase) for phrase in phrases]).stand_in(text) == want


def test_a_costly_filter_sees_only_what_the_cheaper_ones_let_pass_and_is_asked_once():
    asked: list[list[str]] = []

    class Judge:
        name = "unsafe"

        def rejects(self, rows):
            asked.append([found["response"] for found in rows])
            return [found["response"] == "rude" for found in rows]

    ticks = iter(range(10))
    chain = FilterChain([RuleFilter("banned", lambda found: found["response"] == "bad"), Judge()], lambda: next(ticks))
    assert chain.reasons([row("bad"), row("rude"), row("fine")]) == ["banned", "unsafe", None]
    assert asked == [["rude", "fine"]]
    assert chain.texts == {"banned": 3, "unsafe": 2} and chain.seconds == {"banned": 1, "unsafe": 1}
    assert chain.reasons([row("bad")]) == ["banned"]
    assert len(asked) == 1


def test_the_safety_filter_rejects_from_its_threshold_on():
    class Fixed:
        def unsafe_probabilities(self, prompts, responses):
            assert prompts == ["?"] * 3
            return [float(text) for text in responses]

    assert SafetyFilter(Fixed(), 0.5).rejects([row("0.49"), row("0.5"), row("0.9")]) == [False, True, True]


def test_the_reward_filter_asks_about_what_the_scorer_may_judge_and_lets_what_has_no_score_pass():
    class Fixed:
        asked = 0

        def score(self, rows):
            self.asked += len(rows)
            return [float(found["response"]) for found in rows]

    rows = [row("1"), row("-1"), row("nan"), row("-5", finish_reason="length")]
    for scores_truncated, want, asked in (
        (False, [False, True, False, False], 3),
        (True, [False, True, False, True], 4),
    ):
        scorer = Fixed()
        assert RewardFilter(scorer, 0.0, scores_truncated).rejects(rows) == want
        assert scorer.asked == asked
    assert RewardFilter(Fixed(), 0.0, False).rejects([rows[3]]) == [False]
