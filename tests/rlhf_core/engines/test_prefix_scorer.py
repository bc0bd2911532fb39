"""Shared contexts give the harness's own numbers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

from rlhf_core.engines import prefix_scorer
from rlhf_core.engines.prefix_scorer import ModelScorer, can_share_context, loglikelihoods, shared_rows
from rlhf_core.errors import ConfigError, DataError
from rlhf_core.models.packed_attention import use_packed_attention
from tests.tiny_model import make_tiny_model

tokens = st.lists(st.integers(0, 30), min_size=1, max_size=7)
items_ = st.lists(st.tuples(tokens, st.lists(tokens, min_size=1, max_size=4)), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def model(folder):
    return LlamaForCausalLM.from_pretrained(folder).eval()


def score(model, pairs, *, max_length=64, batch_size=3):
    return loglikelihoods(model, pairs, max_length=max_length, batch_size=batch_size, advance=lambda done: None)


@torch.no_grad()
def definition(model, context, continuation, max_length=64):
    """Oracle: one sequence alone, the whole logits, a token at a time."""
    ids = [*context, *continuation][-(max_length + 1) :]
    logprobs = torch.log_softmax(model(torch.tensor([ids[:-1]])).logits[0].double(), dim=-1)
    tail = list(enumerate(ids))[len(ids) - len(continuation) :]
    value = sum(float(logprobs[place - 1, token]) for place, token in tail)
    return value, all(int(logprobs[place - 1].argmax()) == token for place, token in tail)


@settings(max_examples=25, deadline=None)
@given(items_, st.integers(8, 20))
def test_packed_choices_have_the_log_likelihood_of_each_sequence_alone(model, items, max_length):
    pairs = [(context, choice) for context, choices in items for choice in choices]
    for (context, choice), (value, is_greedy) in zip(pairs, score(model, pairs, max_length=max_length), strict=True):
        want, greedy = definition(model, context, choice, max_length)
        assert value == pytest.approx(want, abs=1e-4)
        assert is_greedy == greedy


def test_one_token_choices_cost_one_reading_of_the_context():
    (row,) = shared_rows([((1, 2, 3), (token,)) for token in range(4)], max_length=64)
    assert row.length == 3 and len(row.continuations) == 4


def test_a_row_keeps_to_its_limit(monkeypatch):
    monkeypatch.setattr(prefix_scorer, "MAX_ROW_TOKENS", 9)
    rows = shared_rows([((1, 2, 3), (4, 5, 6, token)) for token in range(4)], max_length=64)
    assert [len(row.continuations) for row in rows] == [2, 2] and all(row.length <= 9 for row in rows)


@pytest.mark.parametrize("pair", [((), (1,)), ((1,), ()), ((1,), (1,) * 9)])
def test_a_request_that_cannot_be_scored_is_refused(pair):
    with pytest.raises(DataError, match="request 0 has"):
        shared_rows([pair], max_length=8)


def test_the_trainers_attention_and_learned_positions_share_contexts_too(folder, model):
    trained = LlamaForCausalLM.from_pretrained(folder).eval()
    use_packed_attention(trained)
    pairs = [((1, 2, 3), (4, 5, 6)), ((1, 2, 3), (7, 8)), ((9,), (1,))]
    assert can_share_context(trained)
    assert [one for one, _ in score(trained, pairs)] == pytest.approx([one for one, _ in score(model, pairs)], abs=1e-5)
    torch.manual_seed(0)
    gpt = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=32, n_embd=16, n_layer=1, n_head=2)).eval()
    assert can_share_context(gpt)
    assert score(gpt, pairs)[0][0] == pytest.approx(definition(gpt, *pairs[0])[0], abs=1e-4)


def test_a_model_whose_head_is_not_all_is_scored_by_its_own_forward_pass(folder):
    class Scaled(LlamaForCausalLM):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits = output.logits * 3
            return output

    scaled = Scaled.from_pretrained(folder).eval()
    pairs = [((1, 2, 3), (4, 5, 6)), ((1, 2, 3), (7,))]
    assert not can_share_context(scaled)
    got = [value for value, _ in score(scaled, pairs)]
    assert got == pytest.approx([definition(scaled, *pair)[0] for pair in pairs], abs=1e-4)


def test_harness_model_equals_the_harness_own_model(folder, model):
    from lm_eval.models.huggingface import HFLM

    from rlhf_core.evaluation.harness_model import HarnessModel

    tokenizer = AutoTokenizer.from_pretrained(folder)
    words = [word for word in tokenizer.get_vocab() if word.isalpha()][:40]
    ours = HarnessModel(ModelScorer(model), tokenizer, batch_size=4, advance=lambda done: None)
    theirs = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4)
    texts = [(" ".join(words[n : n + 5]), f" {words[n + 9]} {words[n + 2]}") for n in range(12)]
    texts += [(texts[0][0], f" {words[20]}"), (texts[0][0] + " ", words[21]), ("", " ".join(words[3:6]))]
    requests = [SimpleNamespace(args=text) for text in texts]
    got, want = ours.loglikelihood(requests), theirs.loglikelihood(requests, disable_tqdm=True)
    assert [one for one, _ in got] == pytest.approx([one for one, _ in want], abs=1e-4)
    assert [greedy for _, greedy in got] == [bool(greedy) for _, greedy in want]
    long = [SimpleNamespace(args=(" ".join(words * 30),)), SimpleNamespace(args=(words[0],))]
    rolling = ours.loglikelihood_rolling(long)
    assert rolling == pytest.approx(theirs.loglikelihood_rolling(long, disable_tqdm=True), rel=1e-5)
    with pytest.raises(ConfigError, match="gsm8k asks for generated text"):
        ours.generate_until([SimpleNamespace(task_name="gsm8k")])
