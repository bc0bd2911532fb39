"""A response depends on its seed and prompt alone: 1,000 of them in other batches, orders and rank shares (G4)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from rlhf_core.config.models import ModelConfig
from rlhf_core.engines.packed_products import can_pack
from rlhf_core.engines.protocols import Generation, GenerationRequest, Sampling
from rlhf_core.engines.transformers_rollout import TransformersRollout
from rlhf_core.models.loading import load_policy
from tests.tiny_model import make_tiny_model

COUNT = 1000
SAMPLING = Sampling(max_new_tokens=8, temperature=1.0)
TIE = 1e-5
"""Of a cumulative probability: what the float32 logits of two batches may move it."""


@pytest.fixture(scope="module", autouse=True)
def two_threads():
    """However many the suite runs with: with several, products are shared out, and the same response is harder."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> TransformersRollout:
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")
    model = load_policy(folder, ModelConfig(policy=str(folder)), torch.device("cpu"))
    return TransformersRollout(model, AutoTokenizer.from_pretrained(folder), batch_size=1)


@pytest.fixture(scope="module")
def requests(engine) -> list[GenerationRequest]:
    """250 prompts of 1 to 24 tokens, four samples of each."""
    draw, vocab = random.Random(0), engine.model.config.vocab_size
    prompts = [tuple(draw.randrange(5, vocab) for _ in range(draw.randint(1, 24))) for _ in range(COUNT // 4)]
    return [GenerationRequest(prompts[i // 4], seed=10_000 + i) for i in range(COUNT)]


@pytest.fixture(scope="module")
def alone(engine, requests) -> list[Generation]:
    return generated(engine, requests, 1)


def generated(engine: TransformersRollout, requests: Sequence[GenerationRequest], size: int) -> list[Generation]:
    other = TransformersRollout(engine.model, engine.tokenizer, batch_size=size)
    return other.generate(requests, SAMPLING)


def boundary_distance(model: LlamaForCausalLM, request: GenerationRequest, shared: tuple[int, ...]) -> float:
    """How far the uniform number that draws the token after `shared` lies from the nearest edge between two tokens."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*request.prompt_ids, *shared]])).logits[0, -1].double()
    uniform = drawn_uniform(request.seed, len(shared))
    return float((logits.softmax(0).cumsum(0) - uniform).abs().min())


def drawn_uniform(seed: int, place: int) -> float:
    return float(np.random.Generator(np.random.PCG64(seed)).random(place + 1)[place])


def exceptions(model, requests, found: Sequence[Generation], wanted: Sequence[Generation]) -> list[float]:
    """The distance at the first token that differs, of each response that does."""
    distances: list[float] = []
    for request, one, other in zip(requests, found, wanted, strict=True):
        if one.response_ids != other.response_ids:
            pairs = zip(one.response_ids, other.response_ids, strict=False)
            first = next(i for i, (a, b) in enumerate(pairs) if a != b)
            distances.append(boundary_distance(model, request, one.response_ids[:first]))
    return distances


def assert_reproduced(engine, requests, found, wanted) -> None:
    distances = exceptions(engine.model, requests, found, wanted)
    assert len(distances) <= COUNT // 1000, distances
    assert all(distance < TIE for distance in distances), distances


@pytest.mark.parametrize("size", [7, 32])
def test_batch_size_and_order_change_no_response(engine, requests, alone, size):
    order = list(range(COUNT))
    random.Random(size).shuffle(order)
    found = generated(engine, [requests[i] for i in order], size)
    back = dict(zip(order, found, strict=True))
    found = [back[i] for i in range(COUNT)]
    assert_reproduced(engine, requests, found, alone)


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.skipif(not can_pack(), reason="needs the packed products of x86-64")
@pytest.mark.parametrize("size", [7, 32])
def test_with_one_thread_even_the_log_probs_bits_are_the_same(one_thread, engine, requests, size):
    """Several threads share a product out by its rows, which moves the last bits."""
    few = requests[:100]
    assert generated(engine, few, size) == generated(engine, few, 1)


def test_two_ranks_shares_give_what_one_rank_gives(engine, requests, alone):
    halves = [generated(engine, requests[rank::2], 32) for rank in range(2)]
    found = [halves[i % 2][i // 2] for i in range(COUNT)]
    assert_reproduced(engine, requests, found, alone)


def test_another_seed_is_no_tie(engine, requests, alone):
    """The check is able to fail: responses of other seeds differ, and not at an edge."""
    moved = [GenerationRequest(one.prompt_ids, one.seed + 1) for one in requests[:50]]
    distances = exceptions(engine.model, requests[:50], generated(engine, moved, 32), alone[:50])
    assert len(distances) > 40
    assert max(distances) > TIE


def test_the_edge_is_where_the_draw_changes(engine, requests, alone):
    """`boundary_distance` names the interval of the token that was drawn."""
    request, response = requests[5], alone[5].response_ids
    with torch.no_grad():
        logits = engine.model(input_ids=torch.tensor([list(request.prompt_ids)])).logits[0, -1].double()
    edges = torch.cat([torch.zeros(1), logits.softmax(0).cumsum(0)])
    uniform = drawn_uniform(request.seed, 0)
    assert edges[response[0]] <= uniform < edges[response[0] + 1]
    assert boundary_distance(engine.model, request, ()) <= float(edges[response[0] + 1] - uniform) + 1e-12
