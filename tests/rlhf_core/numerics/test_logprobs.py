from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.errors import ConfigError
from rlhf_core.numerics import head_matmul
from rlhf_core.numerics.logprobs import entropy_nats, logprobs_from_hidden, token_logprobs

logits_rows = st.integers(2, 6).flatmap(
    lambda vocab: st.lists(st.lists(st.floats(-30, 30), min_size=vocab, max_size=vocab), min_size=1, max_size=4)
)
temperatures = st.floats(0.3, 3.0)


def distribution(row: list[float], temperature: float) -> list[float]:
    """Oracle: softmax by the definition, in Python floats."""
    weights = [math.exp((logit - max(row)) / temperature) for logit in row]
    return [weight / sum(weights) for weight in weights]


def entropy(probs: list[float]) -> float:
    return -sum(p * math.log(p) for p in probs if p > 0)


def problem(tokens=7, hidden=5, vocab=11, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(tokens, hidden, generator=generator, dtype=torch.float64).to(dtype)
    head = torch.randn(vocab, hidden, generator=generator, dtype=torch.float64).to(dtype)
    ids = torch.randint(0, vocab, (tokens,), generator=generator)
    return states.requires_grad_(), head.requires_grad_(), ids


def plain(states, head, ids, temperature):
    """Oracle: whole logits, and autograd's own derivative."""
    logprobs = torch.log_softmax(states @ head.T / temperature, dim=-1)
    return logprobs.gather(1, ids[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


@given(logits_rows, temperatures)
def test_logprobs_and_entropy_from_logits_match_the_definition(rows, temperature):
    logits = torch.tensor([rows], dtype=torch.float64)
    ids = torch.tensor([[i % len(rows[0]) for i in range(len(rows))]])
    got, spread = token_logprobs(logits, ids, temperature)[0], entropy_nats(logits, temperature)[0]
    for place, row in enumerate(rows):
        probs = distribution(row, temperature)
        torch.testing.assert_close(got[place].exp().item(), probs[ids[0, place]], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(spread[place].item(), entropy(probs), rtol=1e-9, atol=1e-9)


def test_case_N12_a_banned_token_leaves_entropy_and_gradient_finite():
    logits = torch.tensor([0.0, 0.0, -torch.inf], requires_grad=True)
    spread = entropy_nats(logits)
    spread.backward()
    assert spread.item() == pytest.approx(math.log(2))
    assert torch.isfinite(logits.grad).all()


def test_half_precision_logits_give_float32():
    logits = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[0, 1, 2]])
    got = token_logprobs(logits.bfloat16(), ids, 1.0)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, token_logprobs(logits.bfloat16().float(), ids, 1.0))


@pytest.mark.parametrize("chunk_tokens", [1, 3, 7, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_the_head_in_chunks_equals_whole_logits_in_value_and_gradient(chunk_tokens, temperature, monkeypatch):
    monkeypatch.setattr(head_matmul, "_BLOCK_ELEMENTS", 22)
    states, head, ids = problem()
    weights = torch.linspace(-1, 2, len(ids), dtype=torch.float64)

    def gradients(logprobs, spread):
        loss = (weights * logprobs).sum() + (weights.flip(0) * spread).sum()
        return torch.autograd.grad(loss, (states, head))

    got = logprobs_from_hidden(states, head, ids, temperature=temperature, chunk_tokens=chunk_tokens)
    want = plain(states, head, ids, temperature)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(*got), gradients(*want), rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        alone = logprobs_from_hidden(states, head, ids, temperature=temperature, chunk_tokens=chunk_tokens)
    torch.testing.assert_close(alone, want, rtol=1e-12, atol=1e-12)


def test_each_output_alone_has_the_right_gradient():
    states, head, ids = problem()
    for index in (0, 1):
        got = torch.autograd.grad(logprobs_from_hidden(states, head, ids)[index].sum(), (states, head))
        want = torch.autograd.grad(plain(states, head, ids, 1.0)[index].sum(), (states, head))
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_a_frozen_head_or_frozen_states_still_give_the_other_its_gradient():
    states, head, ids = problem()
    for wanted, inputs in ((states, (states, head.detach())), (head, (states.detach(), head))):
        (got,) = torch.autograd.grad(logprobs_from_hidden(*inputs, ids)[0].sum(), wanted)
        (want,) = torch.autograd.grad(plain(*inputs, ids, 1.0)[0].sum(), wanted)
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_a_certain_token_and_an_impossible_one_keep_their_logprobs():
    states = torch.tensor([[1.0], [1.0]])
    head = torch.tensor([[200.0], [0.0], [-300.0]])
    logprobs, spread = logprobs_from_hidden(states, head, torch.tensor([0, 2]))
    torch.testing.assert_close(logprobs, torch.tensor([0.0, -500.0]))
    torch.testing.assert_close(spread, torch.zeros(2))


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_under_autocast_results_are_float32_and_close_to_those_of_float32(monkeypatch, has_bfloat16):
    monkeypatch.setattr(head_matmul, "cpu_multiplies_bfloat16", lambda: has_bfloat16)
    states, head, ids = problem(dtype=torch.float32)
    want = plain(states, head, ids, 1.0)
    want_gradients = torch.autograd.grad(want[0].sum(), (states, head))
    with torch.autocast("cpu", torch.bfloat16):
        got = logprobs_from_hidden(states, head, ids)
    gradients = torch.autograd.grad(got[0].sum(), (states, head))
    assert [x.dtype for x in (*got, *gradients)] == [torch.float32] * 4
    tolerance = 5e-2 if has_bfloat16 else 1e-5
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradients, want_gradients, rtol=tolerance, atol=tolerance)


def test_bfloat16_inputs_give_float32_results_and_bfloat16_gradients():
    states, head, ids = problem(dtype=torch.bfloat16)
    got = logprobs_from_hidden(states, head, ids)
    want = plain(states.float(), head.float(), ids, 1.0)
    torch.testing.assert_close(got, want, rtol=5e-2, atol=5e-2)
    got[0].sum().backward()
    assert states.grad.dtype == head.grad.dtype == torch.bfloat16


def test_case_E07_the_same_row_alone_and_among_others_has_the_same_logprob():
    states, head, ids = problem(tokens=40, hidden=64, vocab=300, dtype=torch.float32)
    together, _ = logprobs_from_hidden(states, head, ids, chunk_tokens=16)
    alone = torch.cat([logprobs_from_hidden(states[i : i + 1], head, ids[i : i + 1])[0] for i in range(40)])
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-4)


def test_no_tokens_give_nothing_and_zero_gradients():
    states, head, ids = problem(tokens=0)
    logprobs, spread = logprobs_from_hidden(states, head, ids)
    assert logprobs.shape == spread.shape == (0,)
    logprobs.sum().backward()
    assert not head.grad.any()


def test_entropy_that_nobody_wants_is_zero_and_log_probs_stay():
    states, head, ids = problem()
    logprobs, spread = logprobs_from_hidden(states, head, ids, with_entropy=False)
    torch.testing.assert_close(logprobs, plain(states, head, ids, 1.0)[0])
    assert not spread.any()


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_that_has_no_softmax_is_refused(temperature):
    states, head, ids = problem()
    with pytest.raises(ConfigError, match=r"rollout\.temperature above 0"):
        logprobs_from_hidden(states, head, ids, temperature=temperature)
    with pytest.raises(ConfigError, match=r"rollout\.temperature above 0"):
        entropy_nats(torch.zeros(1, 2), temperature)


def test_training_holds_one_buffer_of_tokens_times_vocabulary():
    tokens, vocab = 64, 5000
    states, head, ids = problem(tokens=tokens, vocab=vocab, dtype=torch.float32)
    sizes = []

    def record(tensor):
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        logprobs_from_hidden(states, head, ids)
    assert sum(size >= tokens * vocab for size in sizes) == 1
