"""The gate: the policy on the baseline's items, and what its drop means."""

from __future__ import annotations

from prefect import get_run_logger

from rlhf_core.checkpoints.stage import apply_decision
from rlhf_core.data.refs import CheckpointRef, EvaluationResult
from rlhf_core.decisions.records import Decision
from rlhf_core.decisions.stage import run_stage as decide_stage
from rlhf_core.evaluation.stage import run_gate
from tasks.artifacts import publish_gate_table
from tasks.baseline import describe
from tasks.notify import notify_decision
from tasks.retrying import engines, stage_task
from tasks.run import Run


@stage_task(run_name="gate-{round_number}")
def evaluate_policy(run: Run, policy: CheckpointRef, round_number: int) -> EvaluationResult:
    """Benchmarks against the baseline, item by item, perplexity, and the reward on held-out prompts."""
    with engines(run, "gate", policy.step) as runtime:
        evaluation = run_gate(runtime, policy, round_number)
    get_run_logger().info("%s", describe(evaluation))
    publish_gate_table(run, f"gate-{round_number}", evaluation)
    return evaluation


@stage_task(run_name="decide-{round_number}")
def decide_round(
    run: Run, policy: CheckpointRef, evaluation: EvaluationResult, baseline: EvaluationResult, round_number: int
) -> Decision:
    """Continue, adjust ptx_coef, roll back or stop, with the reasons in words."""
    with engines(run, "decide", policy.step) as runtime:
        decision = decide_stage(runtime, round_number, policy, evaluation, baseline)
    get_run_logger().info(
        "%s%s: %s", decision.kind, " and promote" if decision.promote else "", "; ".join(decision.reasons)
    )
    return decision


@stage_task(run_name="carry-out-{round_number}")
def carry_out(
    run: Run,
    decision: Decision,
    policy: CheckpointRef,
    evaluation: EvaluationResult,
    baseline: EvaluationResult,
    round_number: int,
) -> CheckpointRef:
    """Promote, adjust or roll back as decided; the policy to go on with."""
    with engines(run, "carry out", policy.step) as runtime:
        following = apply_decision(runtime, decision, policy, evaluation, baseline, round_number=round_number)
    get_run_logger().info(
        "going on from checkpoint %d with kl_coef %.4f, ptx_coef %.4f, learning rate × %.3g",
        following.step,
        following.control.kl_coef,
        following.control.ptx_coef,
        following.control.learning_rate_factor,
    )
    notify_decision(run, decision, round_number)
    return following
