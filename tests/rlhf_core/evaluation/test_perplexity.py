"""Perplexity against its definition."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import LlamaForCausalLM

from rlhf_core.engines.prefix_scorer import ModelScorer
from rlhf_core.evaluation import perplexity as module
from rlhf_core.evaluation.perplexity import perplexity
from tests.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return LlamaForCausalLM.from_pretrained(make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")).eval()


def scorer(model, max_length):
    found = ModelScorer(model)
    found.max_length = max_length
    return found


@torch.no_grad()
def definition(model, documents, limit):
    losses = []
    for document in documents:
        ids = torch.tensor([document[:limit]])
        logprobs = torch.log_softmax(model(ids).logits[0].double(), dim=-1)
        losses += [-float(logprobs[place, ids[0, place + 1]]) for place in range(ids.shape[1] - 1)]
    return math.exp(sum(losses) / len(losses))


def test_perplexity_weighs_every_token_alike(model):
    documents = [[1, 2, 3, 4, 5, 6, 7, 8], [9, 3], [5, 5, 5]]
    got = perplexity(scorer(model, 64), documents, batch_size=2)
    assert got == pytest.approx(definition(model, documents, 64), rel=1e-5)
    shuffled = perplexity(scorer(model, 64), documents[::-1], batch_size=3)
    assert got == pytest.approx(shuffled, rel=1e-6)


def test_only_the_start_of_a_long_document_is_read(model, monkeypatch):
    document = [[n % 30 for n in range(40)]]
    by_model = perplexity(scorer(model, 16), document, batch_size=1)
    assert by_model == pytest.approx(definition(model, document, 16), rel=1e-5)
    monkeypatch.setattr(module, "MAX_DOCUMENT_TOKENS", 16)
    assert perplexity(scorer(model, 64), document, batch_size=1) == pytest.approx(by_model, rel=1e-6)


@pytest.mark.parametrize("documents", [[], [[1]], [[], [2]]])
def test_there_is_no_perplexity_without_a_scored_token(model, documents):
    assert perplexity(scorer(model, 64), documents, batch_size=2) is None


@pytest.mark.parametrize(("scale", "want"), [(math.nan, math.nan), (1e6, math.inf)])
def test_a_destroyed_model_has_no_finite_perplexity(tmp_path, scale, want):
    model = LlamaForCausalLM.from_pretrained(make_tiny_model(tmp_path / "model")).eval()
    torch.nn.init.constant_(model.model.norm.weight, scale)
    found = perplexity(scorer(model, 64), [[1, 2, 3, 4, 5]], batch_size=2)
    assert found == pytest.approx(want, nan_ok=True)
