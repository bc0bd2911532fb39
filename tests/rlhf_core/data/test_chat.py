from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlhf_core.data.chat import encode_dialogue, encode_prompt
from rlhf_core.data.transcripts import Message
from rlhf_core.errors import ConfigError

words = st.lists(st.sampled_from([f"w{n}" for n in range(20)]), min_size=1, max_size=5).map(" ".join)


def chat(*contents: str) -> list[Message]:
    return [Message(role=("user", "assistant")[n % 2], content=text) for n, text in enumerate(contents)]


def test_a_prompt_is_the_template_with_the_assistants_turn_opened(tokenizer):
    ids = encode_prompt(tokenizer, chat("w1", "w2", "w3"), "w9")
    assert tokenizer.convert_ids_to_tokens(ids) == (
        ["<|system|>", "w9", "<|user|>", "w1", "<|assistant|>", "w2", "<|user|>", "w3", "<|assistant|>"]
    )
    assert encode_prompt(tokenizer, chat("w1")) == tokenizer.apply_chat_template(
        chat("w1"), add_generation_prompt=True, return_dict=False
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(prompt=words, response=words)
def test_a_dialogue_is_exactly_its_prompt_then_the_response_then_eos(tokenizer, prompt, response):
    prompt_ids = encode_prompt(tokenizer, chat(prompt), "w9")
    ids = encode_dialogue(tokenizer, chat(prompt), response, "w9")
    assert ids[: len(prompt_ids)] == prompt_ids
    assert tokenizer.convert_ids_to_tokens(ids[len(prompt_ids) :]) == [*response.split(), "<eos>"]


def test_a_tokenizer_without_a_chat_template_is_refused(tokenizer):
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match=r"has no chat template.*chat_template.jinja"):
        encode_prompt(tokenizer, chat("w1"))


def test_a_template_that_takes_no_system_message_says_so(tokenizer):
    tokenizer.chat_template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}x"
    with pytest.raises(ConfigError, match=r"\['system', 'user'\]: no system role.*data.system_prompt"):
        encode_prompt(tokenizer, chat("w1"), "be kind")
