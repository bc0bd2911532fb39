"""Where a run stands, and how a decision changes that."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core.checkpoints.background import verdict
from rlhf_core.checkpoints.records import read_registry
from rlhf_core.checkpoints.registry import Registry
from rlhf_core.checkpoints.save import new_reference, save_checkpoint
from rlhf_core.checkpoints.verify import verify_content
from rlhf_core.config.run import RunConfig
from rlhf_core.data.events import record_event
from rlhf_core.data.refs import CheckpointRef, ControlState, EvaluationResult
from rlhf_core.data.store import RunFolder
from rlhf_core.decisions.records import Decision
from rlhf_core.errors import CheckpointError
from rlhf_core.runtime import Runtime


def start_policy(runtime: Runtime) -> CheckpointRef:
    """The policy that the run goes on from: the current checkpoint, or the SFT model saved as step 0.

    What a run starts from is verified in full, whatever was done when it was saved.
    """
    registry = Registry(runtime.folder, runtime.lock)
    current = registry.usable_current(lambda entry: verify_content(entry.ref.path, runtime.config.model))
    if current is not None:
        return current
    config = runtime.config
    control = ControlState(kl_coef=config.kl.start, ptx_coef=config.ppo.ptx.coef if config.ppo.ptx.enabled else 0.0)
    start = new_reference(runtime, 0, control, {})
    saved = save_checkpoint(runtime, runtime.fresh(), start, parent=None, experience_sha256=None)
    Registry(runtime.folder, runtime.lock).promote(0, None)
    return saved


def sound_policy(runtime: Runtime, *, wait: bool = False) -> CheckpointRef:
    """The policy to go on with, once the verdicts of verifications in the background are known (F2).

    A checkpoint that was found damaged is marked; if it is the current one, the run goes back to the last sound one,
    and the iterations after it are done again.

    Args:
        runtime: of the run.
        wait: until no verification is at work any more; False takes the verdicts that are there.

    Raises:
        CheckpointError: none is sound, or a step's checkpoint was damaged again after it had been done anew.
    """
    registry, config = Registry(runtime.folder, runtime.lock), runtime.config.model
    unverified = [(step, entry) for step, entry in registry.state.checkpoints.items() if entry.status == "saved"]
    for step, entry in sorted(unverified):
        found = verdict(entry.ref.path, config, manifest_sha256=entry.manifest_sha256, wait=wait)
        if found is None:
            continue
        if found.reason is None:
            registry.mark_verified(step)
            continue
        registry.mark_damaged(step, found.reason)
        if entry.damaged_before:
            raise CheckpointError(
                f"checkpoint {step} was damaged again after it had been done anew ({found.reason}). The disk or the "
                "memory of this machine is not to be trusted: `rlhf resume` the run on another."
            )
    current = registry.state.current
    if current is not None and registry.state.checkpoints[current.step].status != "damaged":
        return current
    return registry.usable_current(lambda entry: verify_content(entry.ref.path, config)) or start_policy(runtime)


def remaining_rounds(folder: RunFolder, config: RunConfig) -> Sequence[int]:
    """Rounds, from 1, whose decision is not carried out yet; none after a decision to stop."""
    state = read_registry(folder)
    return range(0) if state.is_stopped else range(state.decided_rounds + 1, config.rounds + 1)


def remaining_iterations(folder: RunFolder, config: RunConfig, round_number: int) -> Sequence[int]:
    """Iterations of a round, numbered through the run from 1, whose update is not saved yet (C03)."""
    first = (round_number - 1) * config.iterations_per_round + 1
    return range(max(first, read_registry(folder).last_step() + 1), round_number * config.iterations_per_round + 1)


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
    registry = Registry(runtime.folder, runtime.lock)
    if registry.state.decided_rounds >= round_number:
        return registry.state.current or policy
    if runtime.config.checkpoints.verify == "background":
        sound_policy(runtime, wait=True)
        registry = Registry(runtime.folder, runtime.lock)
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
