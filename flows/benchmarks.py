"""The gate at the end of a round."""

from __future__ import annotations

from prefect import flow

import tasks
from rlhf_core.data.refs import CheckpointRef, EvaluationResult
from rlhf_core.decisions.records import Decision
from tasks.run import Run


@flow(name="benchmark-gate", flow_run_name="gate-{round_number}")
def benchmark_gate(
    run: Run, policy: CheckpointRef, baseline: EvaluationResult, round_number: int
) -> tuple[Decision, CheckpointRef]:
    """Compare with the baseline, decide (continue, adjust ptx_coef, roll back, stop), and carry the decision out."""
    evaluation = tasks.evaluate_policy(run, policy, round_number)
    decision = tasks.decide_round(run, policy, evaluation, baseline, round_number)
    return decision, tasks.carry_out(run, decision, policy, evaluation, baseline, round_number)
