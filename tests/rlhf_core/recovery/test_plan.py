"""The plan by table: which settings follow from which attempts."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_core.config.run import RunConfig
from rlhf_core.data.refs import ControlState
from rlhf_core.recovery.ledger import Attempt
from rlhf_core.recovery.plan import is_last, plan, steps_taken

GENTLER = {"learning_rate_factor": 0.5, "kl_coef_factor": 2.0}
MICRO = "ppo.micro_batch_rollouts"
CHECKPOINTING = {"model.gradient_checkpointing": True}


def config(**changes: Any) -> RunConfig:
    base = {
        "name": "x",
        "data": {"prompts": [{"path": "p"}], "preferences": {"train": [{"path": "q"}]}},
        "model": {"policy": "m"},
        "ppo": {"ptx": {"enabled": False}, "mini_batch_rollouts": 16, "micro_batch_rollouts": 8},
    }
    return RunConfig.model_validate(base | changes)


def ledger(*rows: str | tuple[str, int] | tuple[str, int, str]) -> list[Attempt]:
    """Attempts from `outcome or class`, iteration (3) and stage (update); `class!` gave up."""
    found: list[Attempt] = []
    for number, row in enumerate(rows, start=1):
        given = (row,) if isinstance(row, str) else row
        what, iteration, stage = (*given, *(3, "update")[len(given) - 1 :])
        facts: dict[str, Any] = {"outcome": what if what in ("ok", "lost", "interrupted") else "error"}
        if facts["outcome"] == "error":
            facts |= {"error_class": what.removesuffix("!"), "gave_up": what.endswith("!")}
        found.append(Attempt(attempt=number, stage=stage, iteration=iteration, **facts))
    return found


def changes_after(*rows: Any, base: RunConfig, iteration: int = 3) -> dict[str, Any]:
    return dict(plan(base, ledger(*rows), stage="update", iteration=iteration).changes)


OOM, NAN, LOST = "out_of_memory", "non_finite", "worker_lost"


@pytest.mark.parametrize(
    ("failures", "step", "expected"),
    [
        ([], 0, {}),
        ([NAN], 1, {}),
        ([NAN, NAN], 2, GENTLER | {MICRO: 4}),
        ([NAN, "kl_collapse", "stalled"], 3, GENTLER | {MICRO: 4} | CHECKPOINTING),
        ([NAN] * 5, 3, GENTLER | {MICRO: 4} | CHECKPOINTING),
        ([OOM], 1, {MICRO: 4}),
        ([OOM, OOM], 2, {MICRO: 2}),
        ([OOM, OOM, OOM], 3, {MICRO: 2} | CHECKPOINTING),
        ([LOST, OOM], 2, GENTLER | {MICRO: 4}),
        ([LOST, OOM, OOM], 3, GENTLER | {MICRO: 2} | CHECKPOINTING),
        (["communication_timeout", "engine"], 2, GENTLER | {MICRO: 4}),
        (["remote", "remote", "remote"], 1, {}),
        (["lost", "lost", "lost"], 0, {}),
        (["interrupted", "interrupted"], 0, {}),
        ([NAN, "lost", "lost", NAN], 2, GENTLER | {MICRO: 4}),
    ],
)
def test_each_failure_near_a_step_takes_the_plan_one_step_on(failures, step, expected):
    chosen = plan(config(), ledger(*failures), stage="update", iteration=3)
    assert (chosen.step, dict(chosen.changes)) == (step, expected)


def test_the_configuration_of_a_plan_differs_in_the_changes_alone():
    base = config()
    chosen = plan(base, ledger(NAN, NAN, NAN), stage="update", iteration=3)
    wanted = base.model_dump()
    wanted["ppo"]["micro_batch_rollouts"], wanted["model"]["gradient_checkpointing"] = 4, True
    assert chosen.config.model_dump() == wanted
    assert plan(base, ledger(NAN), stage="update", iteration=3).config == base


@pytest.mark.parametrize(
    ("micro", "failures", "expected"), [(9, 1, 3), (9, 2, 1), (7, 1, 1), (6, 1, 3), (2, 2, 1), (1, 1, None)]
)
def test_a_micro_batch_always_divides_the_mini_batch(micro, failures, expected):
    ppo = {"ptx": {"enabled": False}, "mini_batch_rollouts": 2 * micro, "micro_batch_rollouts": micro}
    chosen = plan(config(ppo=ppo), ledger(*[OOM] * failures), stage="update", iteration=3)
    assert chosen.changes.get(MICRO) == expected
    assert chosen.config.ppo.mini_batch_rollouts == 2 * micro


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ({"engine": "inline"}, {}),
        ({"engine": "ray"}, {"cluster.zero_stage": 1, "cluster.offload_optimizer": True}),
        ({"engine": "ray", "zero_stage": 2}, {"cluster.zero_stage": 3, "cluster.offload_optimizer": True}),
        ({"engine": "ray", "zero_stage": 3}, {"cluster.offload_optimizer": True}),
        (
            {"engine": "ray", "zero_stage": 1, "offload_optimizer": True},
            {"cluster.zero_stage": 3, "cluster.offload_parameters": True},
        ),
        ({"engine": "ray", "zero_stage": 3, "offload_optimizer": True, "offload_parameters": True}, {}),
    ],
)
def test_the_third_step_asks_for_one_notch_less_memory(cluster, expected):
    base = config(cluster=cluster)
    found = changes_after(OOM, OOM, OOM, base=base)
    assert found == {MICRO: 2} | CHECKPOINTING | expected


@pytest.mark.parametrize(
    ("rows", "iteration", "step", "expected"),
    [
        # A later iteration finished: the count starts again, and what was changed stays for five iterations.
        ([NAN, NAN, "ok", ("ok", 4)], 5, 0, GENTLER | {MICRO: 4}),
        ([NAN, NAN, "ok", ("ok", 4)], 8, 0, GENTLER | {MICRO: 4}),
        ([NAN, NAN, "ok", ("ok", 4)], 9, 0, {}),
        ([NAN, NAN, "ok", ("ok", 4), (NAN, 9)], 9, 1, {}),
        ([NAN, NAN, "ok", ("ok", 4), (NAN, 6)], 6, 1, GENTLER | {MICRO: 4}),
        ([NAN, NAN, NAN, "ok", ("ok", 4), (OOM, 6), (OOM, 6)], 6, 2, GENTLER | {MICRO: 2} | CHECKPOINTING),
        # The failed iteration itself is no progress: the next failure is near the same step.
        ([NAN, "ok", (NAN, 4)], 4, 2, GENTLER | {MICRO: 4}),
        ([NAN, "ok", ("ok", 3, "metrics"), ("ok", 4, "rollouts"), (NAN, 4)], 4, 2, GENTLER | {MICRO: 4}),
        ([NAN, "ok", ("ok", 4), (NAN, 5)], 5, 1, {}),
        # Another stage of that step starts with what is in force, and its own first failure is a step further.
        ([NAN, NAN, "ok", (NAN, 3, "gate")], 4, 0, GENTLER | {MICRO: 4} | CHECKPOINTING),
        # Giving up ends it: who resumes has mended the cause.
        ([NAN, NAN, NAN, NAN + "!"], 3, 0, {}),
        ([NAN, NAN, NAN, NAN + "!", NAN], 3, 1, {}),
        ([NAN, NAN, "ok", ("ok", 4), (NAN + "!", 6)], 6, 0, {}),
        # What failed before the first iteration says nothing of training.
        ([(NAN, 0, "reward baseline"), (NAN, 0, "reward baseline"), NAN], 3, 1, {}),
    ],
)
def test_progress_resets_the_count_and_changed_settings_last(rows, iteration, step, expected):
    chosen = plan(config(), ledger(*rows), stage="update", iteration=iteration)
    assert (chosen.step, dict(chosen.changes)) == (step, expected)


def test_changed_settings_last_as_long_as_the_configuration_says():
    base = config(recovery={"hold_iterations": 0})
    rows = (NAN, NAN, "ok", ("ok", 4))
    assert changes_after(*rows, base=base, iteration=4) == {}
    assert changes_after(*rows, base=config(recovery={"hold_iterations": 1}), iteration=4) == GENTLER | {MICRO: 4}


def test_before_the_first_iteration_each_stage_counts_for_itself():
    rows = [(NAN, 0, "reward model"), (NAN, 0, "reward baseline")]
    first = plan(config(), ledger(*rows), stage="reward baseline", iteration=0)
    assert (first.step, dict(first.changes)) == (1, {})
    healed = [*rows, (NAN, 0, "reward baseline"), ("ok", 0, "reward baseline")]
    assert plan(config(), ledger(*healed), stage="reward baseline", iteration=0).step == 0


def test_the_factors_steer_an_attempt_and_are_not_kept():
    control = ControlState(kl_coef=0.1, ptx_coef=0.3, learning_rate_factor=0.4)
    chosen = plan(config(), ledger(NAN, NAN), stage="update", iteration=3)
    applied = chosen.applied_to(control)
    assert (applied.kl_coef, applied.learning_rate_factor, applied.ptx_coef) == (0.2, 0.2, 0.3)
    assert plan(config(), [], stage="update", iteration=3).applied_to(control) == control


@pytest.mark.parametrize(("before", "after"), [(0.4, 0.5), (0.5, 0.5), (0.7, 0.7)])
def test_beta_stays_within_its_bound(before, after):
    control = ControlState(kl_coef=before, ptx_coef=0.0)
    assert plan(config(), ledger(NAN, NAN), stage="update", iteration=3).applied_to(control).kl_coef == after


@pytest.mark.parametrize(
    ("failures", "retries", "expected"),
    [(0, 3, False), (2, 3, False), (3, 3, True), (4, 3, True), (0, 0, True), (3, 10, False)],
)
def test_the_last_attempt_is_counted_in_the_ledger(failures, retries, expected):
    base = config(recovery={"retries": retries})
    assert is_last(base, ledger(*[NAN] * failures), stage="update", iteration=3) == expected


def test_the_plan_says_in_words_what_it_does():
    chosen = plan(config(), ledger(NAN, NAN), stage="update", iteration=3)
    told = ("retry step 2", "learning rates × 0.5, β × 2", "ppo.micro_batch_rollouts = 4", "last valid checkpoint")
    for words in told:
        assert words in chosen.words
    assert "the same settings" in plan(config(), ledger(NAN), stage="update", iteration=3).words
    held = plan(config(), ledger(NAN, NAN, "ok"), stage="gate", iteration=3).words
    assert held.startswith("still in force up to iteration 8: learning rates × 0.5")
    assert plan(config(), ledger("ok"), stage="update", iteration=4).words == ""


def test_what_was_tried_is_told_when_a_stage_is_given_up():
    rows = ledger(NAN, NAN, NAN)
    rows[1:] = [one.model_copy(update={"step": n, "words": f"retry step {n}"}) for n, one in enumerate(rows[1:], 1)]
    assert steps_taken(rows, rows[-1]) == "failed attempts: 3 (retry step 1; retry step 2)"
    assert steps_taken(rows[:1], rows[0]) == "failed attempts: 1 (no retry was allowed)"
