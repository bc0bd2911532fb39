import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.engines.inverse_cdf import draw_tokens

logit_rows = st.lists(st.floats(-20, 20), min_size=1, max_size=8)


def definition(logits: list[float], uniform: float, temperature: float) -> tuple[int, float]:
    """Oracle: the first token whose cumulative probability exceeds the uniform number; floats, one row."""
    weights = [math.exp(x / temperature - max(logits) / temperature) for x in logits]
    total, reached = math.fsum(weights), 0.0
    for token, weight in enumerate(weights):
        reached += weight
        if reached / total > uniform:
            return token, math.log(weight / total)
    raise AssertionError


@given(logit_rows, st.floats(0, 0.999), st.sampled_from([0.5, 1.0, 2.0]))
def test_a_draw_is_the_inverse_of_the_cumulative_distribution(logits, uniform, temperature):
    tokens, logprobs, _ = draw_tokens(torch.tensor([logits]), torch.tensor([uniform], dtype=torch.float64), temperature)
    exact = torch.tensor(logits, dtype=torch.float32).tolist()
    weights = [math.exp((x - max(exact)) / temperature) for x in exact]
    edges = [sum(weights[: i + 1]) / sum(weights) for i in range(len(weights))]
    if min(abs(edge - uniform) for edge in edges) > 1e-6:
        token, logprob = definition(exact, uniform, temperature)
        assert tokens.item() == token
        assert abs(logprobs.item() - logprob) < 1e-5 * max(1, abs(logprob))


def test_a_token_of_probability_zero_is_never_drawn():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).expand(3, -1)
    uniforms = torch.tensor([0.0, 0.5, 1.0 - 2.0**-53], dtype=torch.float64)
    tokens, logprobs, totals = draw_tokens(logits, uniforms, 1.0)
    assert tokens.tolist() == [1, 3, 3]
    torch.testing.assert_close(logprobs, torch.full((3,), math.log(0.5)))
    assert torch.isfinite(totals).all()


def test_logits_that_are_no_numbers_show_in_the_total():
    logits = torch.zeros(4, 3)
    logits[1, 0], logits[2, 1], logits[3] = torch.nan, torch.inf, -torch.inf
    _, _, totals = draw_tokens(logits, torch.zeros(4, dtype=torch.float64), 0.7)
    assert torch.isfinite(totals).tolist() == [True, False, False, False]


def test_the_logits_are_left_as_they_are():
    logits = torch.randn(2, 5)
    before = logits.clone()
    draw_tokens(logits, torch.zeros(2, dtype=torch.float64), 0.5)
    assert torch.equal(logits, before)
