"""Noise on logits: normal, of its seed and place alone, and part of the log-probs that come with the draw."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from transformers import AutoTokenizer

from rlhf_core.config.models import ModelConfig
from rlhf_core.engines.exploration_noise import explored_logits, standard_noise
from rlhf_core.engines.protocols import Generation, GenerationRequest, Sampling
from rlhf_core.engines.transformers_rollout import TransformersRollout
from rlhf_core.models.loading import load_policy
from tests.tiny_model import make_tiny_model

NOISY = Sampling(max_new_tokens=8, temperature=0.7, noise_std=0.5)


@pytest.fixture(scope="module")
def model_and_tokenizer(tmp_path_factory: pytest.TempPathFactory):
    folder = make_tiny_model(tmp_path_factory.mktemp("noise") / "model")
    model = load_policy(folder, ModelConfig(policy=str(folder)), torch.device("cpu"))
    likes = torch.zeros(model.config.vocab_size)
    likes[AutoTokenizer.from_pretrained(folder).eos_token_id] = 2.0
    model.lm_head.register_forward_hook(lambda module, inputs, output: output + likes)
    return model, AutoTokenizer.from_pretrained(folder)


def requests_of(count: int) -> list[GenerationRequest]:
    draw = random.Random(0)
    prompts = [tuple(draw.randrange(5, 40) for _ in range(draw.randint(1, 6))) for _ in range(count)]
    return [GenerationRequest(prompt, seed=100 + i) for i, prompt in enumerate(prompts)]


@pytest.fixture(scope="module")
def alone(model_and_tokenizer) -> list[Generation]:
    return TransformersRollout(*model_and_tokenizer, batch_size=1).generate(requests_of(20), NOISY)


def test_the_log_probs_are_those_of_the_noisy_softmax_at_the_temperature(model_and_tokenizer, alone):
    model, _ = model_and_tokenizer
    shifts = []
    for request, generation in zip(requests_of(20), alone, strict=True):
        ids = torch.tensor([[*request.prompt_ids, *generation.response_ids]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1].double()
        noise = np.stack([standard_noise(request.seed, t, logits.shape[1]) for t in range(len(logits))])
        chosen = torch.tensor(generation.response_ids)[:, None]
        noisy = ((logits + 0.5 * torch.from_numpy(noise).double()) / 0.7).log_softmax(1).gather(1, chosen)[:, 0]
        torch.testing.assert_close(torch.tensor(generation.logprobs).double(), noisy, rtol=0, atol=1e-4)
        shifts.append((noisy - (logits / 0.7).log_softmax(1).gather(1, chosen)[:, 0]).abs().max())
    assert min(shifts) > 0.01


def test_case_E07_noisy_responses_do_not_depend_on_batch_size_or_order(model_and_tokenizer, alone):
    assert len({len(generation.response_ids) for generation in alone}) > 2
    order = list(range(20))
    random.Random(7).shuffle(order)
    requests = requests_of(20)
    found = TransformersRollout(*model_and_tokenizer, batch_size=7).generate([requests[i] for i in order], NOISY)
    for place, generation in zip(order, found, strict=True):
        assert generation.response_ids == alone[place].response_ids
        torch.testing.assert_close(
            torch.tensor(generation.logprobs), torch.tensor(alone[place].logprobs), rtol=0, atol=1e-4
        )


def test_noise_that_drowns_the_policy_alone_decides_which_token_is_drawn(model_and_tokenizer):
    model, _ = model_and_tokenizer
    requests = requests_of(12)
    found = TransformersRollout(*model_and_tokenizer, batch_size=5).generate(requests, Sampling(4, 1.0, noise_std=1e5))
    for request, generation in zip(requests, found, strict=True):
        places = range(len(generation.response_ids))
        loudest = [int(standard_noise(request.seed, t, model.config.vocab_size).argmax()) for t in places]
        assert list(generation.response_ids) == loudest
        assert max(map(abs, generation.logprobs)) < 1e-6


def test_noise_is_standard_normal_and_differs_by_seed_and_place():
    drawn = [standard_noise(seed, place, 2000) for seed in (5, 2**62) for place in (0, 1)]
    assert kstest(np.concatenate(drawn), "norm").pvalue > 0.01
    for first in range(4):
        for second in range(first):
            assert abs(np.corrcoef(drawn[first], drawn[second])[0, 1]) < 0.1
    assert np.array_equal(drawn[0], standard_noise(5, 0, 2000))


def test_without_noise_the_logits_are_untouched():
    logits = torch.randn(2, 5).bfloat16()
    assert explored_logits(logits, [1, 2], 0, 0.0) is logits
