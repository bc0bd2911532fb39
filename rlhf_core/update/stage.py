"""Stage: one PPO update, the KL controller's answer to it, and the checkpoint that holds both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from rlhf_core.checkpoints.registry import Registry
from rlhf_core.checkpoints.save import new_reference, save_checkpoint
from rlhf_core.config.ppo import KlControllerConfig
from rlhf_core.config.run import RunConfig
from rlhf_core.control.kl_controllers import kl_controller
from rlhf_core.control.max_new_tokens import max_new_tokens_controller
from rlhf_core.control.ptx_coef import moving_average
from rlhf_core.data.events import record_event
from rlhf_core.data.prepared import ptx_documents
from rlhf_core.data.ptx_stream import draw_documents
from rlhf_core.data.records import SAMPLED_TENSORS
from rlhf_core.data.refs import CheckpointRef, ControlState, StageRef
from rlhf_core.data.replay import mix_replay, replay_documents
from rlhf_core.data.store import RunFolder
from rlhf_core.engines.protocols import ExperienceTensors, RolloutTensors
from rlhf_core.errors import DataError
from rlhf_core.runtime import Runtime
from rlhf_core.seeding import derive_seed
from rlhf_core.update.tally import grad_norm_averages

EXPERIENCE = "experience.safetensors"


def run_stage(runtime: Runtime, policy: CheckpointRef, experience: StageRef, iteration: int) -> CheckpointRef:
    """Update the policy on the experience and save the result as checkpoint `iteration`.

    Raises:
        DataError: the experience is missing or damaged, or there is too little ptx text.
        NumericsError: the update is not to be trusted (ratio, KL or gradients).
        CheckpointError: the result does not verify.
    """
    stored = _saved_before(runtime, policy, experience, iteration)
    if stored is not None:
        return stored
    config = runtime.config
    tensors = read_experience(experience.path / EXPERIENCE)
    documents = _documents(config, runtime.folder, policy.control, iteration)
    workers = runtime.for_update(policy)
    seed = derive_seed(config.seed, "update", iteration)
    metrics = workers.update(
        tensors, documents, runtime.plan.applied_to(policy.control), iteration=iteration, seed=seed
    )
    kl_nats = experience.metrics["experience/kl_exact_nats"]
    control = next_control(policy.control, config.kl, kl_nats, rollouts=experience.rows)
    control = memory_answer(runtime, control, iteration)
    _record_halving(runtime.folder, metrics, iteration)
    metrics |= grad_norm_averages(policy.metrics, metrics)
    metrics |= {
        "control/kl_coef": control.kl_coef,
        "control/ptx_coef": control.ptx_coef,
        "control/learning_rate_factor": control.learning_rate_factor,
        "control/max_new_tokens": float(next_max_new_tokens(config, control, iteration)),
    }
    ref = new_reference(runtime, iteration, control, metrics)
    return save_checkpoint(runtime, workers, ref, parent=policy.step, experience_sha256=experience.sha256)


def next_control(control: ControlState, config: KlControllerConfig, kl_nats: float, *, rollouts: int) -> ControlState:
    """Return what steers the next iteration: β answers this batch's KL per token (K1), the rest stays.

    Args:
        control: of the update that was just made.
        config: which controller, and its limits.
        kl_nats: mean KL per token of the batch.
        rollouts: responses in the batch.
    """
    past = kl_nats if control.kl_average_nats is None else control.kl_average_nats
    average = moving_average([past, kl_nats], config.smoothing)
    control = control.model_copy(update={"kl_average_nats": average})
    if config.kind == "fixed":
        return control
    controller = kl_controller(config, control.kl_coef, batch_rollouts=rollouts)
    if control.kl_controller:
        controller.load_state_dict(control.kl_controller)
    kl_coef = controller.observe(kl_nats)
    return control.model_copy(update={"kl_coef": kl_coef, "kl_controller": controller.state_dict()})


def memory_answer(runtime: Runtime, control: ControlState, iteration: int) -> ControlState:
    """Shorten the next iteration's responses where memory got scarce in this one, or restore them by a step (F4)."""
    if not runtime.config.memory.watch:
        return control
    controller = max_new_tokens_controller(runtime.config, control.max_new_tokens_cuts, iteration)
    use = runtime.memory.take_peak()
    controller.observe(use.share)
    answered = control.model_copy(update={"max_new_tokens_cuts": controller.state_dict()["cuts"]})
    before, after = (next_max_new_tokens(runtime.config, state, iteration) for state in (control, answered))
    if after != before:
        record_event(
            runtime.folder,
            "memory_pressure",
            f"{use.share:.0%} of the memory was in use (memory.high_water={runtime.config.memory.high_water:g}): "
            f"responses of the next iteration have up to {after} tokens instead of {before}.",
            iteration=iteration,
            before=before,
            after=after,
            used_bytes=use.used_bytes,
            limit_bytes=use.limit_bytes,
        )
    return answered


def next_max_new_tokens(config: RunConfig, control: ControlState, iteration: int) -> int:
    """Length limit of the responses of the iteration after this one."""
    return max_new_tokens_controller(config, control.max_new_tokens_cuts, iteration + 1).value


def _record_halving(folder: RunFolder, metrics: Mapping[str, float], iteration: int) -> None:
    count, size = metrics["update/out_of_memory_count"], metrics["update/micro_batch_rollouts"]
    if count:
        record_event(
            folder,
            "out_of_memory",
            f"memory ran out {count:.0f} times in the update; it went on with {size:.0f} rollouts per pass. "
            "The gradient is the same.",
            iteration=iteration,
            count=count,
            micro_batch_rollouts=size,
        )


def read_experience(path: Path) -> ExperienceTensors:
    """Read what the experience stage wrote.

    Raises:
        DataError: the file is missing, damaged, or lacks a tensor.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read: {error}. Remove its folder and resume the run.") from error
    missing = sorted(set(SAMPLED_TENSORS) - tensors.keys())
    if missing:
        raise DataError(
            f"{path} lacks the tensors {missing}; it holds {sorted(tensors)}. Remove its folder and resume."
        )
    rollout_names = ("prompt_ids", "prompt_mask", "response_ids", "response_mask")
    learned = ("old_logprobs", "ref_logprobs", "old_values", "advantages", "returns", "importance")
    return ExperienceTensors(
        rollouts=RolloutTensors(**{name: tensors[name] for name in rollout_names}),
        **{name: tensors[name] for name in learned},
        policy_logprobs=tensors.get("policy_logprobs"),
    )


def _documents(config: RunConfig, folder: RunFolder, control: ControlState, iteration: int) -> list[list[int]]:
    """As much general text as the update can use, safe replies among it (G3); none where ptx is off."""
    ptx = config.ppo.ptx
    if not ptx.enabled or not control.ptx_coef:
        return []
    steps = -(-config.optimizer_steps_in(iteration) // ptx.every_updates)
    count = steps * ptx.documents_per_update
    general = draw_documents(ptx_documents(folder), count=count, iteration=iteration, seed=config.seed)
    replacement = config.rollout.rejection.replacement
    if not config.rollout.rejection.may_replace or not replacement.replay_share:
        return general
    replay = replay_documents(folder, iteration, replacement, ptx.max_tokens)
    return mix_replay(general, replay, share=replacement.replay_share, iteration=iteration, seed=config.seed)


def _saved_before(
    runtime: Runtime, policy: CheckpointRef, experience: StageRef, iteration: int
) -> CheckpointRef | None:
    """The checkpoint that this very update left, if it is registered and whole."""
    entry = Registry(runtime.folder, runtime.lock).entry(iteration)
    if entry is None or entry.status not in ("saved", "verified", "promoted"):
        return None
    is_same = entry.parent == policy.step and entry.experience_sha256 == experience.sha256
    return entry.ref if is_same else None
