"""The reward-model stage: train one or take a given one, judge it on held-out pairs, and refuse a bad one (W1, W2)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from rlhf_core.data.events import record_event
from rlhf_core.data.prepared import PAIRS_HELD_OUT, PAIRS_TRAIN, preference_pairs
from rlhf_core.data.refs import RewardModelResult
from rlhf_core.data.reward_model_record import (
    VALIDATION,
    RewardModelRecord,
    RewardModelValidation,
    load_reward_model_record,
)
from rlhf_core.data.store import (
    StageKey,
    disk_errors,
    file_sha256,
    finish_stage,
    finished_stage,
    stage_folder,
    write_json,
)
from rlhf_core.errors import ConfigError, GateFailed
from rlhf_core.models.pair_packing import PairTokens
from rlhf_core.models.reward_model import DialogueForm, RewardModel, load_reward_model, new_reward_model
from rlhf_core.reward_model.baseline import word_baseline_margins
from rlhf_core.reward_model.train import TrainingReport, train_reward_model
from rlhf_core.reward_model.validate import gate_failures, validate_scores, validation_table
from rlhf_core.seeding import derive_seed

if TYPE_CHECKING:
    from rlhf_core.runtime import Runtime

MODEL = "model"
VALIDATION_PAIRS = "validation_pairs.parquet"
TRAINING = "training.json"


def run_stage(runtime: Runtime) -> RewardModelResult:
    """Train a reward model into `reward_model/model/` unless one is given, and judge it on the held-out pairs.

    Raises:
        GateFailed: it is not good enough; the message holds the table of what was measured.
        ConfigError: the model cannot be loaded, or no held-out pairs are there to judge it.
        NumericsError: the training loss is NaN or infinite.
    """
    config = runtime.config
    if config.reward.scorer == "callable":
        return RewardModelResult(path=None, reasons=("responses are scored by reward.callable",))
    given = config.reward_model.path
    key = _training_key(runtime) if given is None else StageKey("given_reward_model", {"path": given}, None)
    path = _trained(runtime, key) if given is None else Path(given)
    record = _judged(runtime, path, key)
    if record.failures:
        raise GateFailed(
            f"the reward model {path} is refused: {'; '.join(record.failures)}.\n{validation_table(record)}\n"
            "Train it on more pairs, train more layers or longer (reward_model.train) in a new run. Or, if it is good "
            f"enough for you, go on: `rlhf resume {runtime.folder.path} --set reward_model.gate.min_accuracy=…` "
            "(or another limit of reward_model.gate) judges it anew and trains nothing again."
        )
    return RewardModelResult(
        path=path,
        accuracy=record.accuracy.value,
        accuracy_low=record.accuracy.low,
        accuracy_high=record.accuracy.high,
        length_correlation=record.length_correlation,
    )


def _training_key(runtime: Runtime) -> StageKey:
    config = runtime.config
    return StageKey(
        stage="reward_model",
        inputs={"pairs": file_sha256(runtime.folder.prompts / PAIRS_TRAIN)},
        settings={
            "train": config.reward_model.train.model_dump(mode="json"),
            "model": config.model.model_dump(mode="json", include={"policy", "revision", "autocast"}),
            "system_prompt": config.data.system_prompt,
            "seed": config.seed,
        },
    )


def _trained(runtime: Runtime, key: StageKey) -> Path:
    """The folder of the trained model, trained now or before."""
    final = runtime.folder.reward_model / MODEL
    if finished_stage(final, key) is not None:
        return final
    config = runtime.config
    settings = config.reward_model.train
    frame, _ = preference_pairs(runtime.folder)
    if settings.max_pairs is not None and len(frame) > settings.max_pairs:
        frame = frame.sample(settings.max_pairs, random_state=derive_seed(config.seed, "reward_model_pairs") % 2**32)
    reward_model = new_reward_model(config.model, runtime.tokenizer, DialogueForm.of(config), runtime.device)
    pairs = _encoded(reward_model, frame)
    with runtime.progress("reward model: pairs", len(pairs) * settings.epochs) as bar:
        report = train_reward_model(reward_model, pairs, settings, seed=config.seed, advance=bar.advance)
    with stage_folder(final) as partial:
        reward_model.save(partial)
        write_json(partial / TRAINING, asdict(report))
        finish_stage(partial, key, rows=len(pairs), metrics=_training_metrics(report))
    return final


def _training_metrics(report: TrainingReport) -> dict[str, float]:
    return {
        "reward_model/steps": float(report.steps),
        "reward_model/validation_accuracy": report.best.accuracy,
        "reward_model/validation_loss": report.best.loss,
        "reward_model/padded_fraction": report.padded_fraction,
    }


def _encoded(reward_model: RewardModel, frame: pd.DataFrame) -> list[PairTokens]:
    columns = (frame[name] for name in ("prompt", "chosen", "rejected"))
    return [reward_model.encode_pair(*row) for row in zip(*columns, strict=True)]


def _judged(runtime: Runtime, path: Path, model_key: StageKey) -> RewardModelRecord:
    """The record in `validation.json`: measured now, or before on the same pairs and model; judged by today's gate."""
    config, folder = runtime.config, runtime.folder
    gate = config.reward_model.gate
    pairs = {name: file_sha256(folder.prompts / name) for name in (PAIRS_TRAIN, PAIRS_HELD_OUT)}
    form = [config.reward_model.train.max_tokens, config.data.system_prompt, config.model.autocast]
    key = StageKey(
        stage="reward_model_validation",
        inputs={"model": model_key.sha256, **pairs},
        settings=[gate.max_pairs, gate.confidence, *form, config.reward.batch_size, config.seed],
    )
    stored = load_reward_model_record(folder.reward_model)
    known = stored if stored is not None and stored.key == key.sha256 else None
    validation = _measured(runtime, path) if known is None else known
    failures = gate_failures(validation, gate)
    if known is not None and known.failures == failures:
        return known
    facts = validation.model_dump(include=set(RewardModelValidation.model_fields))
    record = RewardModelRecord(**facts, key=key.sha256, path=path, failures=failures)
    write_json(folder.reward_model / VALIDATION, record.model_dump(mode="json"))
    record_event(
        folder,
        "reward_model",
        f"reward model {'refused' if failures else 'accepted'}: accuracy {record.accuracy.value:.3f} "
        f"[{record.accuracy.low:.3f}, {record.accuracy.high:.3f}] on {record.accuracy.pairs} held-out pairs.",
        accuracy=record.accuracy.value,
        beats_word_baseline=record.beats_word_baseline,
        failures=failures,
    )
    return record


def _measured(runtime: Runtime, path: Path) -> RewardModelValidation:
    """Score the held-out pairs, keep the scores in `validation_pairs.parquet`, and say what they tell."""
    config, folder = runtime.config, runtime.folder
    train, held_out = preference_pairs(folder)
    gate = config.reward_model.gate
    if gate.max_pairs is not None and len(held_out) > gate.max_pairs:
        held_out = held_out.sample(gate.max_pairs, random_state=derive_seed(config.seed, "gate_pairs") % 2**32)
    if held_out.empty:
        raise ConfigError(
            f"the reward model {path} cannot be judged: there are no held-out preference pairs. Give data.preferences."
        )
    scored = held_out.assign(**_scores(runtime, str(path), held_out))
    margins = None if train.empty else word_baseline_margins(train, held_out)
    validation = validate_scores(scored, margins, gate.confidence)
    columns = ["pair_id", "domain", "chosen_score", "rejected_score", "chosen_length", "rejected_length"]
    lengths = {f"{side}_length": scored[side].str.len() for side in ("chosen", "rejected")}
    with disk_errors(folder.reward_model):
        folder.reward_model.mkdir(parents=True, exist_ok=True)
        scored.assign(**lengths)[columns].to_parquet(folder.reward_model / VALIDATION_PAIRS, index=False)
    return validation


def _scores(runtime: Runtime, path: str, held_out: pd.DataFrame) -> dict[str, Any]:
    config = runtime.config
    reward_model = load_reward_model(path, DialogueForm.of(config), runtime.device)
    pairs = _encoded(reward_model, held_out)
    with runtime.progress("reward model: held-out pairs", len(pairs)) as bar:
        scores = reward_model.score_pairs(pairs, max(1, config.reward.batch_size // 2), bar.advance)
    scores = scores.to(torch.float64).numpy()
    return {"chosen_score": scores[:, 0], "rejected_score": scores[:, 1]}
