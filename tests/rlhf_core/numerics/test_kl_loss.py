from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.numerics.kl_loss import EXPONENT_LIMIT, kl_loss, reverse_kl_loss

NAN = float("nan")
tokens = st.lists(st.tuples(st.floats(-5, 0), st.floats(-5, 0)), min_size=1, max_size=8)
DEFINITIONS = {
    "k1": lambda x: x,
    "k2": lambda x: x * x / 2,
    "k3": lambda x: math.exp(-x) - 1 + x,
    "reverse": lambda x: math.exp(-x) * -x - (math.exp(-x) - 1),
}
ALL = pytest.mark.parametrize("estimator", DEFINITIONS)


def loss_of(logprobs, ref_logprobs, mask, *, estimator, token_count, weights=None):
    if estimator == "reverse":
        return reverse_kl_loss(logprobs, ref_logprobs, mask, token_count=token_count, weights=weights)
    return kl_loss(logprobs, ref_logprobs, mask, estimator=estimator, token_count=token_count, weights=weights)


def run(rows, *, estimator, padding=(), token_count=None, weights=None, dtype=torch.float64):
    table = torch.tensor([*rows, *padding], dtype=dtype).reshape(-1, 2)
    logprobs = table[:, 0].clone().requires_grad_()
    mask = torch.arange(len(table)) < len(rows)
    weights = None if weights is None else torch.tensor(weights, dtype=dtype)
    count = token_count or len(rows)
    loss, metrics = loss_of(logprobs, table[:, 1], mask, estimator=estimator, token_count=count, weights=weights)
    loss.backward()
    return loss.item(), {name: value.item() for name, value in metrics.items()}, logprobs.grad


@ALL
@given(rows=tokens, data=st.data())
def test_loss_and_metrics_match_the_definition(estimator, rows, data):
    weights = data.draw(st.lists(st.floats(0, 3), min_size=len(rows), max_size=len(rows)))
    estimates = [DEFINITIONS[estimator](new - ref) for new, ref in rows]
    loss, metrics, _ = run(rows, estimator=estimator, weights=weights)
    want = sum(w * x for w, x in zip(weights, estimates, strict=True)) / len(rows)
    kind = "reverse_kl" if estimator == "reverse" else f"kl_{estimator}"
    name = "reverse_kl" if estimator == "reverse" else "kl"
    assert loss == pytest.approx(want, rel=1e-9, abs=1e-9)
    assert metrics == pytest.approx(
        {f"update/{kind}_nats": sum(estimates) / len(rows), f"update/{name}_loss": want}, rel=1e-9, abs=1e-9
    )


def expected_gradient(estimator, logits, ref_logprobs):
    """Gradient of the loss in expectation over tokens drawn from the policy: every token once, weighed by its chance.

    Chances are constants, as they are where tokens have been sampled.
    """
    logits = logits.clone().requires_grad_()
    logprobs = torch.log_softmax(logits, dim=0)
    mask = torch.ones(len(logits), dtype=torch.bool)
    chances = logprobs.exp().detach()
    loss, _ = loss_of(logprobs, ref_logprobs, mask, estimator=estimator, token_count=1, weights=chances)
    return torch.autograd.grad(loss, logits)[0]


def exact_gradient(direction, logits, ref_logprobs):
    """Of the divergence itself, summed over the vocabulary."""
    logits = logits.clone().requires_grad_()
    logprobs = torch.log_softmax(logits, dim=0)
    terms = {
        "policy_to_reference": logprobs.exp() * (logprobs - ref_logprobs),
        "reference_to_policy": ref_logprobs.exp() * (ref_logprobs - logprobs),
    }
    return torch.autograd.grad(terms[direction].sum(), logits)[0]


@pytest.mark.parametrize(
    ("estimator", "direction"),
    [("k2", "policy_to_reference"), ("k3", "reference_to_policy"), ("reverse", "reference_to_policy")],
)
@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=2, max_size=6))
def test_the_expected_gradient_on_the_policys_own_tokens_is_that_of_the_divergence(estimator, direction, pairs):
    logits, ref_logits = torch.tensor(pairs, dtype=torch.float64).T
    ref_logprobs = torch.log_softmax(ref_logits, dim=0)
    got, want = expected_gradient(estimator, logits, ref_logprobs), exact_gradient(direction, logits, ref_logprobs)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)


def test_the_expected_gradient_of_k1_is_zero_and_k3s_is_not_that_of_the_penalised_kl():
    logits = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)
    ref_logprobs = torch.log_softmax(torch.tensor([-1.0, 0.5, 0.0], dtype=torch.float64), dim=0)
    exact = exact_gradient("policy_to_reference", logits, ref_logprobs)
    assert expected_gradient("k1", logits, ref_logprobs).abs().max() < 1e-12
    assert (expected_gradient("k3", logits, ref_logprobs) - exact).abs().max() > 0.05


@ALL
def test_the_expected_value_is_the_divergence(estimator):
    """k2 is biased and only near: the policies here are close."""
    logprobs = torch.log_softmax(torch.tensor([0.3, 0.0, -0.2], dtype=torch.float64), dim=0)
    ref_logprobs = torch.log_softmax(torch.tensor([0.2, 0.1, -0.2], dtype=torch.float64), dim=0)
    chances, mask = logprobs.exp(), torch.ones(3, dtype=torch.bool)
    loss, _ = loss_of(logprobs, ref_logprobs, mask, estimator=estimator, token_count=1, weights=chances)
    is_reverse = estimator == "reverse"
    left, right = (ref_logprobs, logprobs) if is_reverse else (logprobs, ref_logprobs)
    want = (left.exp() * (left - right)).sum().item()
    assert loss.item() == pytest.approx(want, rel=0.05 if estimator == "k2" else 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_case_N09_the_monitored_kl_is_exact_whatever_the_loss_limits(dtype):
    _, metrics, _ = run([(-5.0, 0.0)], estimator="k3", dtype=dtype)
    assert metrics["update/kl_k3_nats"] == pytest.approx(math.exp(5) - 6)
    loss, metrics, gradient = run([(-200.0, 0.0)], estimator="k3", dtype=dtype)
    assert metrics["update/kl_k3_nats"] == pytest.approx(math.exp(200) - 201)
    limit = math.exp(EXPONENT_LIMIT)
    assert loss == pytest.approx(limit - 1 + limit * (200 - EXPONENT_LIMIT) - 200, rel=1e-6)
    assert gradient.tolist() == pytest.approx([1 - limit], rel=1e-6)
    _, metrics, gradient = run([(-200.0, 0.0)], estimator="reverse", dtype=dtype)
    assert metrics["update/reverse_kl_nats"] == pytest.approx(199 * math.exp(200), rel=1e-6)
    assert gradient.tolist() == pytest.approx([1 - limit], rel=1e-6)


@ALL
@given(rows=tokens, hidden=st.sampled_from([(NAN, NAN), (0.0, NAN), (NAN, 0.0), (-1.0, 5e4), (float("-inf"), 0.0)]))
def test_case_N01_what_the_mask_hides_changes_neither_loss_nor_metrics_nor_gradients(estimator, rows, hidden):
    loss, metrics, gradient = run(rows, estimator=estimator)
    padded = run(rows, estimator=estimator, padding=[hidden] * 3, weights=[1.0] * len(rows) + [NAN] * 3)
    assert padded[0] == pytest.approx(loss, rel=1e-12, abs=1e-12)
    assert padded[1] == pytest.approx(metrics, rel=1e-12, abs=1e-12)
    torch.testing.assert_close(padded[2], torch.cat([gradient, gradient.new_zeros(3)]))


@ALL
@given(first=tokens, second=tokens)
def test_micro_batches_add_up_to_the_mini_batch(estimator, first, second):
    count = len(first) + len(second)
    whole = run([*first, *second], estimator=estimator)
    parts = [run(rows, estimator=estimator, token_count=count) for rows in (first, second)]
    assert whole[0] == pytest.approx(parts[0][0] + parts[1][0], rel=1e-9, abs=1e-12)
    torch.testing.assert_close(whole[2], torch.cat([parts[0][2], parts[1][2]]))
