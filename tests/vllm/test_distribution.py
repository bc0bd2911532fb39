"""Proof 1: both engines sample from the same distribution; and what is left of reproducibility (G4)."""

from collections import Counter

import numpy as np
import pytest
import torch

from rlhf_core.engines.protocols import GenerationRequest, Sampling
from rlhf_core.engines.transformers_rollout import TransformersRollout
from tests.vllm.conftest import started
from tests.vllm.policies import save_policy, trainer_logprobs

TEXTS = ("The best way to learn is", "Once upon a time", "I think that")
RESPONSES = 2000
TOKENS = 4
STOPS = (" the", ",", ".")
"""So that lengths differ."""
PERMUTATIONS = 2000


@pytest.fixture(scope="module")
def engines(environment, real_policy, tmp_path_factory):
    model, tokenizer = real_policy
    root = tmp_path_factory.mktemp("distribution")
    with started(environment, tokenizer, root / "logs") as engine:
        engine.sync(save_policy(root, model, tokenizer, 0))
        yield engine, TransformersRollout(model, tokenizer, batch_size=64), model, tokenizer


def prompts(tokenizer) -> list[tuple[int, ...]]:
    return [tuple(tokenizer(text)["input_ids"]) for text in TEXTS]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_both_engines_give_the_same_tokens_the_same_logprobs(temperature, engines):
    vllm, _, model, tokenizer = engines
    requests = [GenerationRequest(prompt, seed) for prompt in prompts(tokenizer) for seed in range(10)]
    found = vllm.generate(requests, Sampling(24, temperature))
    differences = [
        abs(a - b)
        for request, one in zip(requests, found, strict=True)
        for a, b in zip(
            one.logprobs, trainer_logprobs(model, request.prompt_ids, one.response_ids, temperature), strict=True
        )
    ]
    print(f"temperature {temperature}: {len(differences)} tokens differ by {max(differences):.1e} nats at most")
    assert max(differences) < 1e-3


def test_two_thousand_responses_of_each_engine_do_not_differ(engines):
    """Two-sample permutation tests at 1 in 1,000: first tokens, first pairs of tokens, mean log-probs."""
    vllm, transformers, _, tokenizer = engines
    chosen = prompts(tokenizer)
    ours = [GenerationRequest(chosen[seed % len(chosen)], seed) for seed in range(RESPONSES)]
    theirs = [GenerationRequest(request.prompt_ids, request.seed + 10**6) for request in ours]
    torch.set_num_threads(1)
    sampling = Sampling(TOKENS, 1.0, STOPS)
    samples = vllm.generate(ours, sampling), transformers.generate(theirs, sampling)
    assert len({len(one.response_ids) for one in samples[0]}) == TOKENS
    groups = [index % len(chosen) for index in range(RESPONSES)]
    rng = np.random.default_rng(0)
    for name, key in (
        ("first token", lambda one: one.response_ids[0]),
        ("first two tokens", lambda one: one.response_ids[:2]),
        ("length", lambda one: len(one.response_ids)),
    ):
        labels = [[(group, key(one)) for group, one in zip(groups, sample, strict=True)] for sample in samples]
        p_value = chi_square_p(labels, rng)
        print(f"{name}: p = {p_value:.3f}")
        assert p_value > 1e-3
    means = [np.array([sum(one.logprobs) for one in sample]) for sample in samples]
    p_value = mean_p(*means, rng)
    print(f"log-prob of the response: means {means[0].mean():.3f} and {means[1].mean():.3f}, p = {p_value:.3f}")
    assert p_value > 1e-3


def chi_square_p(labels: list[list], rng: np.random.Generator) -> float:
    """Of the sum of (a - b)² / (a + b) over what was seen, under permutations; blind to nothing that is frequent."""
    index = {label: place for place, label in enumerate(Counter(labels[0] + labels[1]))}
    codes = np.array([index[label] for label in labels[0] + labels[1]])
    total = np.bincount(codes, minlength=len(index))
    half = len(labels[0])

    def statistic(order: np.ndarray) -> float:
        first = np.bincount(order[:half], minlength=len(index))
        return float((((2 * first - total) ** 2) / total).sum())

    seen = statistic(codes)
    beaten = sum(statistic(rng.permutation(codes)) >= seen for _ in range(PERMUTATIONS))
    return (beaten + 1) / (PERMUTATIONS + 1)


def mean_p(first: np.ndarray, second: np.ndarray, rng: np.random.Generator) -> float:
    both = np.concatenate([first, second])
    seen = abs(first.mean() - second.mean())
    found = [rng.permutation(both) for _ in range(PERMUTATIONS)]
    beaten = sum(abs(one[: len(first)].mean() - one[len(first) :].mean()) >= seen for one in found)
    return (beaten + 1) / (PERMUTATIONS + 1)


def test_the_two_sample_test_notices_a_slightly_colder_policy(engines):
    """What the test above would see: temperature 0.9 against 1."""
    _, transformers, _, tokenizer = engines
    chosen = prompts(tokenizer)
    requests = [GenerationRequest(chosen[seed % len(chosen)], seed) for seed in range(RESPONSES)]
    warm = transformers.generate(requests, Sampling(TOKENS, 1.0))
    other = [GenerationRequest(request.prompt_ids, request.seed + 10**6) for request in requests]
    colder = transformers.generate(other, Sampling(TOKENS, 0.9))
    both = [np.array([sum(one.logprobs) for one in sample]) for sample in (warm, colder)]
    assert mean_p(*both, np.random.default_rng(0)) < 1e-3


def test_the_same_seeds_in_other_batches(engines):
    """G4 for vLLM: most responses are equal at 1, 7 and 32 at once; another batch rounds its sums differently."""
    vllm, _, _, tokenizer = engines
    chosen = prompts(tokenizer)
    requests = [GenerationRequest(chosen[seed % len(chosen)], seed) for seed in range(96)]
    by_size = {}
    for size in (32, 7, 1):
        found = []
        for start in range(0, len(requests), size):
            found += vllm.generate(requests[start : start + size], Sampling(24, 1.0))
        by_size[size] = [one.response_ids for one in found]
    shares = {size: np.mean([a == b for a, b in zip(ids, by_size[32], strict=True)]) for size, ids in by_size.items()}
    print(f"equal to those of 32 at once: {shares}")
    assert min(shares.values()) > 0.9

    vllm_again = vllm.generate(list(reversed(requests)), Sampling(24, 1.0))[::-1]
    share = np.mean([a.response_ids == b for a, b in zip(vllm_again, by_size[32], strict=True)])
    print(f"in the reverse order: {share}")
    assert share > 0.9


def test_in_bfloat16_the_logprobs_are_those_of_float32_up_to_its_rounding(environment, real_policy, tmp_path):
    """Proof 1 asks for the report: 8 bits of mantissa are 1 in 256 of a logit, and logits go to some tens."""
    model, tokenizer = real_policy
    with started(environment, tokenizer, tmp_path / "logs", dtype="bfloat16") as engine:
        engine.sync(save_policy(tmp_path, model, tokenizer, 0))
        requests = [GenerationRequest(prompt, seed) for prompt in prompts(tokenizer) for seed in range(10)]
        found = engine.generate(requests, Sampling(24, 1.0))
    differences = np.concatenate(
        [
            np.abs(np.array(one.logprobs) - trainer_logprobs(model, request.prompt_ids, one.response_ids, 1.0))
            for request, one in zip(requests, found, strict=True)
        ]
    )
    mean, most = differences.mean(), differences.max()
    print(f"bfloat16: {len(differences)} tokens differ by {mean:.3f} nats on average, {most:.3f} at most")
    assert 1e-4 < mean < 0.1 and most < 1
