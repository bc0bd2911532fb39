"""The moving averages of the gradient norms, by hand; the tally's other metrics are judged in test_ppo."""

from __future__ import annotations

import pytest

from rlhf_core.engines.optimizer import StepResult
from rlhf_core.update.tally import Tally, grad_norm_averages

ACTOR, CRITIC = "update/actor_grad_norm", "update/critic_grad_norm"


def test_the_average_starts_with_the_first_norm_and_then_moves_a_tenth_of_the_way():
    metrics: dict[str, float] = {}
    found = []
    for norm in (1.0, 2.0, 4.0):
        metrics = grad_norm_averages(metrics, {ACTOR: norm, CRITIC: 10 * norm})
        found.append(metrics[f"{ACTOR}_average"])
    assert found == pytest.approx([1.0, 1.1, 1.39])
    assert metrics[f"{CRITIC}_average"] == pytest.approx(13.9)


def test_a_model_that_took_no_step_has_no_norm_and_keeps_its_average():
    tally = Tally()
    tally.add_step("actor", StepResult(grad_norm=3.0, learning_rate=1e-3, is_clipped=True, is_skipped=False))
    tally.add_step("critic", StepResult(grad_norm=float("nan"), learning_rate=1e-3, is_clipped=False, is_skipped=True))
    update = tally.metrics(epochs=1, stop_reason="epoch_limit")
    assert update[ACTOR] == 3.0 and update["update/actor_clipped_share"] == 1.0
    assert CRITIC not in update
    assert grad_norm_averages({f"{CRITIC}_average": 7.0}, update) == pytest.approx(
        {f"{ACTOR}_average": 3.0, f"{CRITIC}_average": 7.0}
    )
    assert grad_norm_averages({}, update) == {f"{ACTOR}_average": 3.0}
