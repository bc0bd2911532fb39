"""The baseline: what the SFT model can do before any training, on the items and prompts that every gate uses."""

from __future__ import annotations

from prefect import get_run_logger

from rlhf_core.data.refs import EvaluationResult, StageRef
from rlhf_core.evaluation.stage import run_ability_baseline, run_baseline
from tasks.artifacts import publish_gate_table
from tasks.retrying import engines, stage_task
from tasks.run import Run


@stage_task(run_name="abilities")
def evaluate_abilities(run: Run) -> StageRef:
    """Benchmarks and perplexity of the SFT model; they need no reward model."""
    with engines(run, "ability baseline") as runtime:
        abilities = run_ability_baseline(runtime)
    get_run_logger().info("%d benchmark items answered by the SFT model", abilities.rows)
    return abilities


@stage_task(run_name="baseline")
def evaluate_baseline(run: Run) -> EvaluationResult:
    """The SFT model's reward on held-out prompts, and all of the baseline in one record."""
    with engines(run, "reward baseline") as runtime:
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
    scores.append(
        f"held-out reward {evaluation.held_out_reward:.3f} ({evaluation.reward_gain:+.2f} std of the baseline), "
        f"KL {evaluation.held_out_kl_nats:.4f} nats per token"
    )
    return ", ".join(scores)
