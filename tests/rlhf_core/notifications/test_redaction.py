"""A secret goes nowhere, whatever stands around it."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.notifications.redaction import HIDDEN, parts_of_url, redact, secrets_in

secrets = st.text(string.ascii_letters + string.digits + "-_.", min_size=6, max_size=40)


@given(st.text(), secrets, st.text(), secrets)
def test_known_secrets_are_gone_wherever_they_stand(before, secret, after, other):
    # One letter may come back from the mark itself, a whole secret of six never.
    said = redact(before + secret + after + secret + other, [secret, other])
    assert secret not in said
    assert other not in said


@given(st.sampled_from(["slack", "json", "mailto"]), secrets, secrets)
def test_no_long_part_of_an_address_is_left(schema, one, two):
    url = f"{schema}://{one}:{two}@host-of-it/{two}/{one}?to={one}"
    said = redact(f"could not reach {url} today; {two} was refused for {one}", parts_of_url(url))
    assert one not in said
    assert two not in said
    assert said.startswith("could not reach")


@pytest.mark.parametrize(
    "text",
    [
        "https://user:Hunter2pass@example.org/x",
        "postgres://Hunter2pass@db/x",
        "https://hooks.slack.com/services/T0/B0/Hunter2pass",
        "Authorization: Bearer Hunter2pass.x",
        "hf_Hunter2pass",
        "sk-Hunter2pass",
        "ghp_Hunter2pass",
        "password=Hunter2pass",
        "'api_key': 'Hunter2pass'",
        "PASSWORD: Hunter2pass",
    ],
)
def test_what_looks_like_a_secret_is_hidden_unasked(text):
    said = redact(f"before {text} after")
    assert "Hunter2pass" not in said
    assert HIDDEN in said
    assert said.startswith("before")
    assert said.endswith("after")


@pytest.mark.parametrize(
    "text", ["KL, nats per token: 0.0123", "nan in the values of 3 responses", "see https://example.org/page"]
)
def test_ordinary_words_stay(text):
    assert redact(text, ["to"]) == text


def test_secrets_of_the_environment_are_told_by_their_names():
    assert secrets_in({"HF_TOKEN": "a", "DB_PASSWORD": "b", "HOME": "c", "OPENAI_API_KEY": "d"}) == {"a", "b", "d"}
