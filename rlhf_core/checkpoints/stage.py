"""Where a run stands, and how a decision changes that."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core.checkpoints.registry import Registry
from rlhf_core.checkpoints.save import new_reference, save_checkpoint
from rlhf_core.config.run import RunConfig
from rlhf_core.data.events import record_event
from rlhf_core.data.refs import CheckpointRef, ControlState, EvaluationResult
from rlhf_core.data.store import RunFolder
from rlhf_core.decisions.records import Decision
from rlhf_core.runtime import Runtime


def start_policy(runtime: Runtime) -> CheckpointRef:
    """The policy that the run goes on from: the current checkpoint, or the SFT model saved as step 0."""
    registry = Registry(runtime.folder)
    current = registry.usable_current()
    if current is not None:
        return current
    config = runtime.config
    control = ControlState(kl_coef=config.kl.start, ptx_coef=config.ppo.ptx.coef if config.ppo.ptx.enabled else 0.0)
    start = new_reference(runtime, 0, control, {})
    saved = save_checkpoint(runtime, runtime.fresh(), start, parent=None, experience_sha256=None)
    registry = Registry(runtime.folder)
    registry.promote(0, None)
    return saved


def remaining_rounds(folder: RunFolder, config: RunConfig) -> Sequence[int]:
    """Rounds, from 1, whose decision is not carried out yet; none after a decision to stop."""
    state = Registry(folder).state
    return range(0) if state.is_stopped else range(state.decided_rounds + 1, config.rounds + 1)


def remaining_iterations(folder: RunFolder, config: RunConfig, round_number: int) -> Sequence[int]:
    """Iterations of a round, numbered through the run from 1, whose update is not saved yet (C03)."""
    first = (round_number - 1) * config.iterations_per_round + 1
    return range(max(first, Registry(folder).last_step() + 1), round_number * config.iterations_per_round + 1)


def apply_decision(
    runtime: Runtime,
    decision: Decision,
    policy: CheckpointRef,
    evaluation: EvaluationResult,
    baseline: EvaluationResult,
    *,
    round_number: int,
) -> CheckpointRef:
    """Carry a gate's decision out: promote, adjust, or roll back. Doing it twice changes nothing.

    Returns:
        the policy to go on with.
    """
    registry = Registry(runtime.folder)
    if registry.state.decided_rounds >= round_number:
        return registry.state.current or policy
    registry.set_score(0, baseline.held_out_reward)
    if decision.promote:
        registry.promote(policy.step, evaluation.held_out_reward)
    abandoned = _steps_of_round(registry, policy) if decision.kind == "roll_back" else None
    if abandoned is not None:
        target = registry.state.promoted
        record_event(
            runtime.folder,
            "rollback",
            f"rolled back from checkpoint {policy.step} to {target}: " + "; ".join(decision.reasons),
            round=round_number,
            iteration=policy.step,
            abandoned=abandoned,
            target=target,
        )
    return registry.close_round(round_number, decision.control, abandoned=abandoned, stop=decision.kind == "stop")


def _steps_of_round(registry: Registry, policy: CheckpointRef) -> list[int]:
    """Checkpoints after the promoted one, up to `policy`, along its parents."""
    steps: list[int] = []
    step: int | None = policy.step
    while step is not None and step != registry.state.promoted:
        entry = registry.entry(step)
        if entry is None:
            break
        if entry.status != "pruned":
            steps.append(step)
        step = entry.parent
    return steps
