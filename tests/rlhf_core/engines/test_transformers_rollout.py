import random

import pytest
import torch
from transformers import AutoTokenizer

from rlhf_core.config.models import ModelConfig
from rlhf_core.engines.non_finite import NonFiniteLogits
from rlhf_core.engines.protocols import Generation, GenerationRequest, Sampling
from rlhf_core.engines.transformers_rollout import TransformersRollout, eos_token_ids
from rlhf_core.errors import ConfigError, DataError, OutOfMemory
from rlhf_core.models.loading import load_policy
from rlhf_core.numerics import head_matmul
from tests.tiny_model import make_tiny_model

SAMPLING = Sampling(max_new_tokens=24, temperature=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model", pad_is_eos=True)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def model(folder, tokenizer):
    """A random model that likes EOS, so that responses end at different times."""
    model = load_policy(folder, ModelConfig(policy=str(folder)), torch.device("cpu"))
    likes = torch.zeros(model.config.vocab_size)
    likes[tokenizer.eos_token_id] = 3.0
    model.lm_head.register_forward_hook(lambda module, inputs, output: output + likes)
    return model


def requests_of(count: int, vocabulary: int) -> list[GenerationRequest]:
    """Prompts of 1 to 12 tokens, every third one shared with the one before."""
    rng = random.Random(0)
    prompts = [tuple(rng.randrange(5, vocabulary) for _ in range(rng.randint(1, 12))) for _ in range(count)]
    return [GenerationRequest(prompts[i - 1] if i % 3 == 2 else prompts[i], seed=1000 + i) for i in range(count)]


@pytest.fixture(scope="module")
def alone(model, tokenizer) -> list[Generation]:
    """Each of 40 responses sampled in a batch of its own."""
    engine = TransformersRollout(model, tokenizer, batch_size=1)
    return engine.generate(requests_of(40, model.config.vocab_size), SAMPLING)


def assert_same(found: Generation, wanted: Generation) -> None:
    assert (found.response_ids, found.finish_reason) == (wanted.response_ids, wanted.finish_reason)
    torch.testing.assert_close(torch.tensor(found.logprobs), torch.tensor(wanted.logprobs), rtol=0, atol=1e-4)


@pytest.mark.parametrize("batch_size", [7, 32])
def test_case_E07_a_response_does_not_depend_on_batch_size_or_order(model, tokenizer, alone, batch_size):
    requests = requests_of(40, model.config.vocab_size)
    order = list(range(40))
    random.Random(batch_size).shuffle(order)
    engine = TransformersRollout(model, tokenizer, batch_size=batch_size)
    for place, found in zip(order, engine.generate([requests[i] for i in order], SAMPLING), strict=True):
        assert_same(found, alone[place])


def test_case_E02_eos_is_kept_and_nothing_follows_it_though_it_is_the_pad_token(model, tokenizer, alone):
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    endings = {generation.finish_reason for generation in alone}
    assert endings == {"eos", "length"}
    for generation in alone:
        places = [i for i, token in enumerate(generation.response_ids) if token == tokenizer.eos_token_id]
        is_ended = generation.finish_reason == "eos"
        assert places == ([len(generation.response_ids) - 1] if is_ended else [])
        assert is_ended or len(generation.response_ids) == SAMPLING.max_new_tokens
        assert len(generation.logprobs) == len(generation.response_ids)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_case_K01_logprobs_are_those_of_a_plain_forward_pass_at_the_sampling_temperature(model, tokenizer, temperature):
    requests = requests_of(6, model.config.vocab_size)
    engine = TransformersRollout(model, tokenizer, batch_size=6)
    found = engine.generate(requests, Sampling(max_new_tokens=12, temperature=temperature))
    for request, generation in zip(requests, found, strict=True):
        ids = torch.tensor([[*request.prompt_ids, *generation.response_ids]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1].double() / temperature
        chosen = torch.tensor(generation.response_ids)
        want = logits.gather(1, chosen[:, None]).squeeze(1) - logits.logsumexp(dim=1)
        torch.testing.assert_close(torch.tensor(generation.logprobs).double(), want, rtol=0, atol=1e-4)


def test_responses_follow_the_policys_distribution(model, tokenizer):
    prompt = (7, 8, 9)
    engine = TransformersRollout(model, tokenizer, batch_size=500)
    sampling = Sampling(max_new_tokens=1, temperature=1.0)
    found = engine.generate([GenerationRequest(prompt, seed) for seed in range(2000)], sampling)
    counts = torch.bincount(torch.tensor([g.response_ids[0] for g in found]), minlength=model.config.vocab_size)
    with torch.no_grad():
        want = (model(input_ids=torch.tensor([prompt])).logits[0, -1]).softmax(0) * 2000
    chi_square = float(((counts - want) ** 2 / want).sum())
    degrees = model.config.vocab_size - 1
    assert chi_square < degrees + 5 * (2 * degrees) ** 0.5


def test_a_lower_length_limit_gives_the_beginning_of_the_same_response(model, tokenizer, alone):
    engine = TransformersRollout(model, tokenizer, batch_size=16)
    short = engine.generate(requests_of(40, model.config.vocab_size), Sampling(5, 1.0))
    for found, whole in zip(short, alone, strict=True):
        assert found.response_ids == whole.response_ids[:5]


def test_case_E03_a_stop_text_ends_a_response_by_itself(model, tokenizer, alone):
    requests = requests_of(40, model.config.vocab_size)
    whole = next(i for i, g in enumerate(alone) if g.finish_reason == "length")
    word = tokenizer.decode([alone[whole].response_ids[4]]).strip()
    engine = TransformersRollout(model, tokenizer, batch_size=40)
    found = engine.generate(requests, Sampling(24, 1.0, stop_strings=(word,)))
    assert found[whole].finish_reason == "stop_sequence"
    assert len(found[whole].response_ids) <= 5
    assert word in tokenizer.decode(found[whole].response_ids)
    for cut, reference in zip(found, alone, strict=True):
        assert cut.response_ids == reference.response_ids[: len(cut.response_ids)]


def test_case_N05_logits_that_are_no_numbers_name_their_request(model, tokenizer):
    requests = [GenerationRequest((6, 7), 1), GenerationRequest((6, 5, 7, 8), 2), GenerationRequest((9,), 3)]

    def poison(module, inputs, output):
        return torch.where((inputs[0] == 5)[..., None], torch.nan, output)

    handle = model.get_input_embeddings().register_forward_hook(poison)
    try:
        with pytest.raises(NonFiniteLogits, match="request 1, response token 0") as caught:
            TransformersRollout(model, tokenizer, batch_size=3).generate(requests, SAMPLING)
    finally:
        handle.remove()
    assert (caught.value.request_index, caught.value.token_index, caught.value.transient) == (1, 0, True)


def test_bfloat16_autocast_changes_precision_alone(model, tokenizer, alone, monkeypatch):
    monkeypatch.setattr(head_matmul, "cpu_multiplies_bfloat16", lambda: True)
    engine = TransformersRollout(model, tokenizer, batch_size=8, autocast="bfloat16")
    found = engine.generate(requests_of(8, model.config.vocab_size), SAMPLING)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    first = torch.tensor([[g.logprobs[0], w.logprobs[0]] for g, w in zip(found, alone, strict=False)])
    assert not torch.equal(first[:, 0], first[:, 1])
    assert (first[:, 0] - first[:, 1]).abs().mean() < 0.5


def test_a_prompt_without_tokens_and_a_temperature_of_zero_are_refused(model, tokenizer):
    engine = TransformersRollout(model, tokenizer, batch_size=2)
    with pytest.raises(DataError, match=r"request 1 .* empty prompt"):
        engine.generate([GenerationRequest((5,), 1), GenerationRequest((), 2)], SAMPLING)
    with pytest.raises(ConfigError, match="temperature"):
        engine.generate([GenerationRequest((5,), 1)], Sampling(4, 0.0))
    assert engine.generate([], SAMPLING) == []


def test_running_out_of_memory_is_said_with_the_setting_to_change(model, tokenizer):
    def fail(module, inputs, output):
        raise torch.OutOfMemoryError("no room")

    handle = model.get_input_embeddings().register_forward_hook(fail)
    try:
        with pytest.raises(OutOfMemory, match=r"rollout\.batch_size"):
            TransformersRollout(model, tokenizer, batch_size=2).generate([GenerationRequest((5,), 1)], SAMPLING)
    finally:
        handle.remove()


def test_sampling_that_runs_out_of_memory_goes_on_with_half_and_gives_the_same_responses(model, tokenizer):
    requests = [GenerationRequest((5 + i, 6), i) for i in range(5)]
    expected = TransformersRollout(model, tokenizer, batch_size=5).generate(requests, SAMPLING)
    engine = TransformersRollout(model, tokenizer, batch_size=5)
    seen: list[int] = []

    def fail(module, inputs, output):
        seen.append(output.shape[0] * output.shape[1])
        if seen[-1] > 4:
            raise torch.OutOfMemoryError("no room")

    handle = model.get_input_embeddings().register_forward_hook(fail)
    try:
        found = engine.generate(requests, SAMPLING)
    finally:
        handle.remove()
    assert [one.response_ids for one in found] == [one.response_ids for one in expected]
    assert seen[0] == 10 and max(seen[1:]) == 4
    assert (engine.batch.size, engine.batch.out_of_memory_count) == (2, 1)


def test_no_padded_token_and_no_finished_row_goes_through_the_model(model, tokenizer, alone):
    """P12: of each batch every distinct prompt is read once, then each row's tokens but the last."""
    requests = requests_of(40, model.config.vocab_size)
    seen: list[int] = []
    handle = model.get_input_embeddings().register_forward_hook(lambda m, i, o: seen.append(o.shape[0] * o.shape[1]))
    try:
        TransformersRollout(model, tokenizer, batch_size=40).generate(requests, SAMPLING)
    finally:
        handle.remove()
    prompts = {request.prompt_ids for request in requests}
    assert len(prompts) < len(requests)
    assert seen[0] == sum(len(prompt) for prompt in prompts)
    assert sum(seen[1:]) == sum(len(one.response_ids) - 1 for one in alone)


def test_only_special_tokens_of_the_generation_settings_end_a_response(model, tokenizer, monkeypatch):
    monkeypatch.setattr(model.generation_config, "eos_token_id", [tokenizer.eos_token_id, 40])
    assert eos_token_ids(model, tokenizer) == frozenset({tokenizer.eos_token_id})
