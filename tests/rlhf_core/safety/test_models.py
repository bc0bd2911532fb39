"""Classifiers and chat models as judges, against plain transformers and by their errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForSequenceClassification

from rlhf_core.config.rejection import SafetyConfig
from rlhf_core.errors import ConfigError, NumericsError
from rlhf_core.safety.build import build_safety, safety_identity
from rlhf_core.safety.windows import form_ids, windows
from tests.tiny_model import make_tiny_model

CPU = torch.device("cpu")
LABELS = {0: "fine", 1: "rude", 2: "toxic"}


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("chat") / "model")


@pytest.fixture(scope="module")
def words(chat: Path) -> list[str]:
    """Words that the tiny tokenizer knows."""
    return sorted(word for word in AutoTokenizer.from_pretrained(chat).get_vocab() if word.isalpha())


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory, chat: Path) -> Path:
    folder = tmp_path_factory.mktemp("classifier") / "model"
    save_classifier(folder, chat, id2label=LABELS)
    return folder


def save_classifier(folder: Path, chat: Path, **options: Any) -> None:
    body = AutoModelForCausalLM.from_pretrained(chat)
    torch.manual_seed(0)
    config = body.config
    config.update({"num_labels": len(options.get("id2label", LABELS)), **options})
    model = LlamaForSequenceClassification(config)
    model.model.load_state_dict(body.model.state_dict())
    torch.nn.init.normal_(model.score.weight, std=1.0)
    model.save_pretrained(str(folder))
    AutoTokenizer.from_pretrained(chat).save_pretrained(str(folder))


def settings(folder: Path, **changes: Any) -> SafetyConfig:
    plain = {"kind": "text-classification", "path": str(folder), "unsafe_labels": ["rude", "toxic"], "max_tokens": 64}
    return SafetyConfig.model_validate(plain | {"batch_size": 3} | changes)


def texts(words: list[str]) -> list[str]:
    return [" ".join(words[i : i + 3 + 2 * i]) for i in range(7)]


def test_a_classifiers_unsafe_labels_add_up_as_plain_transformers_has_them(classifier, words):
    responses = texts(words)
    found = build_safety(settings(classifier), CPU).unsafe_probabilities([""] * 7, responses)
    model = LlamaForSequenceClassification.from_pretrained(classifier).eval()
    tokenizer = AutoTokenizer.from_pretrained(classifier)
    for text, value in zip(responses, found, strict=True):
        with torch.no_grad():
            logits = model(**tokenizer(text, return_tensors="pt")).logits[0]
        assert value == pytest.approx(float(logits.softmax(0)[1:].sum()), abs=1e-5)
    assert len(set(found)) == 7


def test_labels_that_may_hold_together_give_the_greatest(tmp_path, chat, words):
    save_classifier(tmp_path / "m", chat, id2label=LABELS, problem_type="multi_label_classification")
    found = build_safety(settings(tmp_path / "m"), CPU).unsafe_probabilities([""], [words[3]])
    model = LlamaForSequenceClassification.from_pretrained(tmp_path / "m").eval()
    with torch.no_grad():
        logits = model(**AutoTokenizer.from_pretrained(chat)(words[3], return_tensors="pt")).logits[0]
    assert found == [pytest.approx(float(logits[1:].sigmoid().max()), abs=1e-5)]


def test_the_template_puts_prompt_and_response_together(classifier, words):
    template = words[0] + " {prompt} {response}"
    one, other = (build_safety(settings(classifier, **extra), CPU) for extra in ({"template": template}, {}))
    assert one.unsafe_probabilities([words[5]], [words[9]]) == pytest.approx(
        other.unsafe_probabilities([""], [f"{words[0]} {words[5]} {words[9]}"]), abs=1e-6
    )


def test_a_long_response_is_judged_by_its_worst_part(classifier, words):
    judge = build_safety(settings(classifier), CPU)
    response = " ".join(words[i % 40] for i in range(150))
    parts = windows(judge.tokenizer, lambda prompt, text: text, "", response, 64)
    assert [token for part in parts for token in part] == form_ids(judge.tokenizer, response)
    assert len(parts) == 4 and max(map(len, parts)) <= 64
    alone = judge.unsafe_probabilities([""] * 4, [judge.tokenizer.decode(part) for part in parts])
    assert judge.unsafe_probabilities([""], [response]) == [pytest.approx(max(alone), abs=1e-6)]
    assert len(set(alone)) == 4


def test_a_long_prompt_loses_its_beginning_and_leaves_room_for_the_response(chat, words):
    tokenizer = AutoTokenizer.from_pretrained(chat)
    prompt = " ".join([*words[:100], words[100]])
    parts = windows(tokenizer, lambda p, r: f"{p} . {r}", prompt, " ".join(words[:60]), 64)
    dot, last = tokenizer.get_vocab()["."], tokenizer.get_vocab()[words[100]]
    for part in parts:
        assert len(part) <= 64 and part[part.index(dot) - 1] == last
    said = [token for part in parts for token in part[part.index(dot) + 1 :]]
    assert said == form_ids(tokenizer, " ".join(words[:60]))


def test_no_text_at_all_has_a_probability(classifier):
    (found,) = build_safety(settings(classifier), CPU).unsafe_probabilities([""], [""])
    assert 0 <= found <= 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unsafe_labels": ["toxic", "harm"]}, r"does not have the labels \['harm'\]. Its labels are \['fine', 'rude'"),
        ({"unsafe_labels": ["fine", "rude", "toxic"]}, "has no label left that is safe"),
        ({"max_tokens": 512}, "exceeds the window of .*, 256 tokens"),
        ({"path": "/nowhere/at/all"}, "does not exist"),
    ],
)
def test_a_classifier_that_does_not_fit_is_refused(classifier, changes, message):
    with pytest.raises(ConfigError, match=message):
        build_safety(settings(classifier, **changes), CPU)


def test_a_model_of_another_kind_is_refused(tmp_path, chat):
    with pytest.raises(ConfigError, match=r"lacks 1 weights of a LlamaForSequenceClassification.*score"):
        build_safety(settings(chat, unsafe_labels=["LABEL_1"]), CPU)
    save_classifier(tmp_path / "one", chat, id2label={0: "score"})
    with pytest.raises(ConfigError, match="it is a scorer, no classifier"):
        build_safety(settings(tmp_path / "one", unsafe_labels=["score"]), CPU)


def judge(chat: Path, words: list[str], **changes: Any) -> SafetyConfig:
    plain = {"kind": "chat", "path": str(chat), "safe_word": words[1], "unsafe_word": words[2], "max_tokens": 64}
    return SafetyConfig.model_validate(plain | {"batch_size": 3} | changes)


@pytest.mark.parametrize("template", [None, "{prompt} . {response} ?"])
def test_a_chat_models_verdict_is_the_two_words_probabilities_after_the_prompt(chat, words, template):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(chat).eval(), AutoTokenizer.from_pretrained(chat)
    responses = texts(words)
    prompts = [words[7]] * len(responses)
    found = build_safety(judge(chat, words, template=template), CPU).unsafe_probabilities(prompts, responses)
    for prompt, response, value in zip(prompts, responses, found, strict=True):
        if template is None:
            turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]
            text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        else:
            text = template.format(prompt=prompt, response=response)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        with torch.no_grad():
            logprobs = model(ids).logits[0, -1].log_softmax(0)
        safe, unsafe = (float(logprobs[tokenizer.get_vocab()[word]].exp()) for word in (words[1], words[2]))
        assert value == pytest.approx(unsafe / (safe + unsafe), abs=1e-5)


def test_tokens_that_both_verdicts_begin_with_are_read_before_the_difference(chat, words):
    shared = build_safety(judge(chat, words, verdict_prefix=words[4] + " "), CPU)
    plain = build_safety(judge(chat, words, template="{prompt} . {response} ? " + words[4]), CPU)
    question = judge(chat, words, template="{prompt} . {response} ?", verdict_prefix=words[4] + " ")
    assert build_safety(question, CPU).unsafe_probabilities([words[5]], [words[6]]) == pytest.approx(
        plain.unsafe_probabilities([words[5]], [words[6]]), abs=1e-6
    )
    assert shared.unsafe_probabilities([words[5]], [words[6]]) != plain.unsafe_probabilities([words[5]], [words[6]])


@pytest.mark.parametrize("change", [{"unsafe_word": "zzzz"}, {"unsafe_word": "SAME"}])
def test_verdicts_that_tell_nothing_apart_are_refused(chat, words, change):
    change = {"unsafe_word": words[1]} if change["unsafe_word"] == "SAME" else change
    with pytest.raises(ConfigError, match="which tell nothing apart"):
        build_safety(judge(chat, words, **change), CPU)


def test_a_chat_model_without_any_template_is_refused(tmp_path, words):
    folder = make_tiny_model(tmp_path / "m", has_chat_template=False)
    with pytest.raises(ConfigError, match=r"has no chat template\. Set rollout.rejection.safety.template"):
        build_safety(judge(folder, words), CPU)
    assert build_safety(judge(folder, words, template="{response}"), CPU).unsafe_probabilities([""], [words[3]])


def test_broken_weights_are_told_and_not_taken_for_safe(classifier, words):
    found = build_safety(settings(classifier), CPU)
    found.model.score.weight.data.fill_(float("nan"))
    with pytest.raises(NumericsError, match="the safety classifier's output is NaN"):
        found.unsafe_probabilities([""], [words[3]])


def test_none_configured_is_an_error_and_identities_tell_classifiers_apart(classifier, chat, words):
    with pytest.raises(ConfigError, match="names no classifier"):
        build_safety(None, CPU)
    identities = [safety_identity(found) for found in (SafetyConfig(), settings(classifier), judge(chat, words))]
    assert len({str(identity) for identity in identities}) == 3
    (classifier / "tokenizer_config.json").write_text((classifier / "tokenizer_config.json").read_text() + "\n")
    assert safety_identity(settings(classifier)) != identities[1]
