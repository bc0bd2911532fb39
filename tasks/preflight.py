"""Preflight: what can be found wrong before any model is trained."""

from __future__ import annotations

from prefect import get_run_logger

from rlhf_core.config.lint import lint
from rlhf_core.data.prepare import run_stage
from rlhf_core.data.refs import StageRef
from rlhf_core.evaluation.local_tasks import available_items
from rlhf_core.rewards.scorers import require_importable
from rlhf_core.rollout.rejecter import require_readable
from tasks.retrying import engines, stage_task
from tasks.run import Run


@stage_task(run_name="check-config")
def check_config(run: Run) -> int:
    """Refuse word lists and scorers that cannot be read, and warn of settings that are known to hurt; how many."""
    with engines(run, "check config") as runtime:
        config = runtime.config
        require_readable(config)
        require_importable(config)
        warnings = lint(config, available_items(config.evaluation.benchmarks, config.data.root))
    for warning in warnings:
        get_run_logger().warning("%s: %s", warning.field, warning.message)
    get_run_logger().info("%d warnings about the configuration", len(warnings))
    return len(warnings)


@stage_task(run_name="prepare-data")
def prepare_data(run: Run) -> StageRef:
    """Read and validate every source, and store what later stages use."""
    with engines(run, "prepare data") as runtime:
        prepared = run_stage(runtime)
    get_run_logger().info("%s", ", ".join(f"{name} {value:g}" for name, value in sorted(prepared.metrics.items())))
    return prepared
