"""Stage: from validated rollouts to the tensors that one update learns from."""

from __future__ import annotations

import pandas as pd
import torch
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor

from rlhf_core.data.collate import rollout_tensors
from rlhf_core.data.refs import CheckpointRef, StageRef
from rlhf_core.data.store import (
    StageKey,
    disk_errors,
    finish_stage,
    finished_stage,
    load_stage,
    read_table,
    stage_folder,
)
from rlhf_core.engines.protocols import RolloutEvaluation
from rlhf_core.errors import CannotLearn, DataError
from rlhf_core.experience.build import Estimation, build_experience, judgement
from rlhf_core.models.loading import pad_token_id
from rlhf_core.numerics.importance import truncated_importance_weights
from rlhf_core.runtime import Runtime

VALIDATED = "validated.parquet"
EXPERIENCE = "experience.safetensors"


def run_stage(runtime: Runtime, policy: CheckpointRef, validated: StageRef, iteration: int) -> StageRef:
    """Evaluate the rollouts with policy, reference and critic, and write `experience.safetensors` (`SAMPLED_TENSORS`).

    Log-probs are the trainer's, at the rollout temperature (K01); rows that are not valid are left out. In an iteration
    with exploration noise `old_logprobs` are the engine's, since the noisy distribution sampled (P4); the trainer's are
    kept beside them as `policy_logprobs`.

    Raises:
        CannotLearn: no valid row is left.
        DataError: a row's engine log-probs do not fit its tokens.
        NumericsError: a model's output or a score is NaN or infinite.
    """
    config, kl_coef = runtime.config, runtime.plan.applied_to(policy.control).kl_coef
    final = runtime.folder.iteration(iteration) / "experience"
    key = StageKey(
        stage="experience",
        inputs={"validated": validated.sha256, "policy": policy.path.name},
        settings=[
            kl_coef,
            *(part.model_dump(mode="json") for part in (config.algorithm, config.ppo, config.reward)),
        ],
    )
    if stored := finished_stage(final, key):
        return stored
    frame = _valid_rows(validated, iteration)
    rollouts = rollout_tensors(frame, pad_token_id(runtime.tokenizer))
    evaluation = runtime.at(policy).evaluate_rollouts(rollouts)
    experience, metrics = build_experience(
        evaluation,
        judgement(frame["reward"].tolist(), frame["ending"].tolist(), frame["prompt_id"].tolist()),
        rollouts.response_mask,
        Estimation(kl_coef=kl_coef, iteration=iteration, config=config),
    )
    engine_logprobs = _engine_logprobs(frame, rollouts.response_mask)
    is_explored = config.rollout.exploration.noise_std_at(iteration) > 0
    cap = None if is_explored else config.ppo.importance_cap
    importance, weight_metrics = _importance(evaluation.logprobs, engine_logprobs, rollouts.response_mask, cap)
    metrics |= weight_metrics
    tensors: dict[str, Tensor] = {
        **vars(rollouts),
        **vars(experience),
        **_log_probabilities(evaluation, engine_logprobs, is_explored=is_explored),
        "old_values": evaluation.values,
        "importance": importance,
    }
    with stage_folder(final) as partial:
        with disk_errors(final):
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial / EXPERIENCE)
        finish_stage(partial, key, rows=len(frame), metrics=metrics)
    return load_stage(final)


def _valid_rows(validated: StageRef, iteration: int) -> pd.DataFrame:
    frame = read_table(validated.path / VALIDATED)
    frame = frame.loc[frame["valid"].astype(bool)].reset_index(drop=True)
    if frame.empty:
        raise CannotLearn(
            f"iteration {iteration}: none of {validated.rows} rollouts is valid, so there is nothing to learn from. "
            "Look at exclude_reason in the scored rollouts."
        )
    return frame


def _log_probabilities(
    evaluation: RolloutEvaluation, engine_logprobs: Tensor, *, is_explored: bool
) -> dict[str, Tensor]:
    """The old policy's are the trainer's; where the engine explored, its own, with the trainer's beside them."""
    ref = {"ref_logprobs": evaluation.ref_logprobs}
    if is_explored:
        return {**ref, "old_logprobs": engine_logprobs, "policy_logprobs": evaluation.logprobs}
    return {**ref, "old_logprobs": evaluation.logprobs}


def _engine_logprobs(frame: pd.DataFrame, response_mask: Tensor) -> Float[Tensor, "batch response"]:
    """The log-probs that the engine sampled with; 0 at padding."""
    engine = [list(row) for row in frame["engine_logprobs"]]
    lengths = response_mask.sum(dim=1).tolist()
    for row, (found, expected) in enumerate(zip(engine, lengths, strict=True)):
        if len(found) != expected:
            raise DataError(
                f"validated rollouts, row {row}: {len(found)} engine log-probs for {expected} response tokens; "
                "the rollout engine must give one for each token, EOS included."
            )
    logprobs = torch.zeros(response_mask.shape)
    logprobs[response_mask] = torch.tensor([x for row in engine for x in row])
    return logprobs


def _importance(
    logprobs: Tensor, engine_logprobs: Tensor, response_mask: Tensor, cap: float | None
) -> tuple[Float[Tensor, "batch response"], dict[str, float]]:
    """Weights that correct the engine's mismatch where there is a cap for them, and what it amounts to.

    Where the engine explored there is none: there the ratio itself is against the engine's log-probs.
    """
    gap = (logprobs.double() - engine_logprobs.double()).abs()
    metrics = {"experience/engine_mismatch_nats": float(gap[response_mask].mean())}
    if cap is None:
        return torch.ones_like(logprobs), metrics
    weights, weight_metrics = truncated_importance_weights(logprobs, engine_logprobs, response_mask, cap=cap)
    return weights, metrics | weight_metrics
