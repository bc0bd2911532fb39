from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.errors import NumericsError
from rlhf_core.experience.kl_shaping import KlTokenLimit, shape_rewards

NAN = float("nan")
kl = st.floats(-1, 1)
responses = st.lists(
    st.tuples(st.floats(-3, 3), st.lists(st.tuples(kl, kl), min_size=1, max_size=5)), min_size=1, max_size=4
)


def tensors(rows, padding):
    width = max(len(steps) for _, steps in rows) + padding
    kl_t, limit_kl = torch.full((2, len(rows), width), NAN, dtype=torch.float64)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, (_, steps) in enumerate(rows):
        for t, (penalty_kl, compared_kl) in enumerate(steps):
            kl_t[i, t], limit_kl[i, t], mask[i, t] = penalty_kl, compared_kl, True
    return torch.tensor([score for score, _ in rows], dtype=torch.float64), kl_t, limit_kl, mask


@given(responses, st.sampled_from([0, 1, 64]))
def test_case_E09_rewards_and_metrics_match_the_definition_whatever_the_padding(rows, padding):
    scores, kl_t, limit_kl, mask = tensors(rows, padding)
    limit = KlTokenLimit(limit_kl, limit_nats=0.5)
    rewards, metrics = shape_rewards(scores, kl_t, mask, kl_coef=0.1, limit=limit)
    limited = 0
    for (score, steps), got, kept in zip(rows, rewards, mask, strict=True):
        want = [-10.0 if compared > 0.5 else -0.1 * penalty for penalty, compared in steps]
        limited += sum(compared > 0.5 for _, compared in steps)
        want[-1] += score
        assert got[kept].tolist() == pytest.approx(want, rel=1e-9, abs=1e-12)
        assert not got[~kept].any()
    penalties = [penalty for _, steps in rows for penalty, _ in steps]
    assert metrics["experience/kl_penalty_nats"] == pytest.approx(sum(penalties) / len(penalties), abs=1e-12)
    assert metrics["experience/kl_limited_fraction"] == pytest.approx(limited / len(penalties))


def test_case_E01_the_score_lands_on_eos_or_on_the_last_real_token():
    mask = torch.tensor([[True, True, True, False, False], [True, True, True, True, True]])
    rewards, _ = shape_rewards(torch.tensor([1.5, -2.0]), torch.zeros(2, 5), mask, kl_coef=0.1)
    assert rewards.tolist() == [[0.0, 0.0, 1.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, -2.0]]


def test_a_response_without_tokens_gets_no_reward_even_if_it_has_no_score():
    mask = torch.tensor([[False, False], [True, False]])
    rewards, _ = shape_rewards(torch.tensor([NAN, 1.0]), torch.zeros(2, 2), mask, kl_coef=0.1)
    assert rewards.tolist() == [[0.0, 0.0], [1.0, 0.0]]
    none = torch.empty(2, 0)
    assert shape_rewards(torch.zeros(2), none, none.bool(), kl_coef=0.1)[0].shape == (2, 0)


def test_without_a_limit_no_token_is_limited():
    rewards, metrics = shape_rewards(
        torch.zeros(1), torch.tensor([[9.0]]), torch.ones(1, 1, dtype=torch.bool), kl_coef=0.5
    )
    assert rewards.tolist() == [[-4.5]]
    assert metrics["experience/kl_limited_fraction"] == 0.0


@pytest.mark.parametrize("broken", ["final_scores", "kl_t", "limit.kl_t"])
def test_a_number_that_is_none_is_refused_by_name(broken):
    inputs = {"final_scores": torch.zeros(1), "kl_t": torch.zeros(1, 1), "limit.kl_t": torch.zeros(1, 1)}
    inputs[broken][...] = NAN
    limit = KlTokenLimit(inputs["limit.kl_t"], limit_nats=0.5)
    with pytest.raises(NumericsError, match=f"^{broken} holds"):
        shape_rewards(
            inputs["final_scores"], inputs["kl_t"], torch.ones(1, 1, dtype=torch.bool), kl_coef=0.1, limit=limit
        )
