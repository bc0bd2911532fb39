"""Where a run stands: the policy to go on with, and what is left to do."""

from __future__ import annotations

from prefect import get_run_logger

from rlhf_core.checkpoints.registry import Registry
from rlhf_core.checkpoints.stage import remaining_iterations as remaining_iterations_of
from rlhf_core.checkpoints.stage import remaining_rounds as rounds_left
from rlhf_core.checkpoints.stage import sound_policy as policy_to_go_on_with
from rlhf_core.checkpoints.stage import start_policy as current_policy
from rlhf_core.data.refs import CheckpointRef
from rlhf_core.errors import CheckpointError
from rlhf_core.runtime import open_runtime
from tasks.retrying import engines, stage_task
from tasks.run import Run


@stage_task(run_name="start-policy")
def start_policy(run: Run) -> CheckpointRef:
    """The current checkpoint; for a new run the SFT model, saved as step 0."""
    with engines(run, "start policy") as runtime:
        policy = current_policy(runtime)
    get_run_logger().info("going on from checkpoint %d", policy.step)
    return policy


def sound_policy(run: Run, policy: CheckpointRef, *, wait: bool) -> CheckpointRef:
    """`policy`, unless a verification in the background has found its checkpoint damaged: then the last sound one.

    Args:
        run: the run.
        policy: the checkpoint just saved.
        wait: for verifications that are still at work, as before a gate.
    """
    if open_runtime(run.folder).config.checkpoints.verify != "background":
        return policy
    return _settle(run, wait)


@stage_task(run_name="verified-policy")
def _settle(run: Run, wait: bool) -> CheckpointRef:
    with engines(run, "verify") as runtime:
        return policy_to_go_on_with(runtime, wait=wait)


def fall_back(run: Run, error: CheckpointError) -> None:
    """Make the last whole checkpoint current after one turned out damaged.

    Raises:
        CheckpointError: `error`, where the current checkpoint is whole; another, where none is.
    """
    runtime = open_runtime(run.folder)
    registry = Registry(runtime.folder, runtime.lock)
    damaged = registry.state.current
    if registry.usable_current() == damaged:
        raise error
    runtime.drop()
    get_run_logger().warning("%s The run goes back to the last whole checkpoint.", error)


def remaining_rounds(run: Run) -> list[int]:
    """Rounds whose decision is not carried out yet; none after a stop."""
    runtime = open_runtime(run.folder)
    return list(rounds_left(runtime.folder, runtime.config))


def remaining_iterations(run: Run, round_number: int) -> list[int]:
    """Iterations of a round whose update is not saved yet."""
    runtime = open_runtime(run.folder)
    return list(remaining_iterations_of(runtime.folder, runtime.config, round_number))
