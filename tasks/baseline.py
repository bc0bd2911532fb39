"""The baseline: what the SFT model can do before any training, on the items that every gate uses."""

from __future__ import annotations

from prefect import get_run_logger

from rlhf_core.data.refs import EvaluationResult
from rlhf_core.evaluation.stage import run_baseline
from tasks.artifacts import publish_gate_table
from tasks.retrying import engines, stage_task
from tasks.run import Run


@stage_task(run_name="baseline")
def evaluate_baseline(run: Run) -> EvaluationResult:
    """Benchmarks, perplexity and the reward on held-out prompts of the SFT model."""
    with engines(run, "baseline") as runtime:
        baseline = run_baseline(runtime)
    get_run_logger().info("%s", describe(baseline))
    publish_gate_table(run, "baseline", baseline)
    return baseline


def describe(evaluation: EvaluationResult) -> str:
    """The numbers of an evaluation in one line."""
    scores = [
        f"{score.name} {score.accuracy:.3f} [{score.low:.3f}, {score.high:.3f}]" for score in evaluation.benchmarks
    ]
    if evaluation.perplexity is not None:
        scores.append(f"perplexity {evaluation.perplexity:.2f}")
    scores.append(f"held-out reward {evaluation.held_out_reward:.3f} ± {evaluation.held_out_reward_std:.3f}")
    return ", ".join(scores)
