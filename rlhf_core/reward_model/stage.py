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
from rlhf_core.data.store import (
    StageKey,
    disk_errors,
    file_sha256,
    finish_stage,
    finished_stage,
    read_json,
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
VALIDATION = "validation.json"
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
    facts = _validated(runtime, str(path), key)
    result = RewardModelResult(
        path=path,
        accuracy=facts["accuracy"]["value"],
        accuracy_low=facts["accuracy"]["low"],
        accuracy_high=facts["accuracy"]["high"],
        length_correlation=facts["length_correlation"],
        is_accepted=not facts["failures"],
        reasons=tuple(facts["failures"]),
    )
    if not result.is_accepted:
        raise GateFailed(
            f"the reward model {path} is refused: {'; '.join(result.reasons)}.\n{validation_table(facts)}\n"
            "Train it on more pairs, train more layers or longer (reward_model.train), or lower reward_model.gate."
        )
    return result


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


def _validated(runtime: Runtime, path: str, model_key: StageKey) -> dict[str, Any]:
    """What `validation.json` holds: measured now, or before on the same pairs and model."""
    config, folder = runtime.config, runtime.folder
    file = folder.reward_model / VALIDATION
    held_out_file = folder.prompts / PAIRS_HELD_OUT
    key = StageKey(
        stage="reward_model_validation",
        inputs={"model": model_key.sha256, "pairs": file_sha256(held_out_file)},
        settings=[config.reward_model.model_dump(mode="json"), config.reward.batch_size, config.data.system_prompt],
    )
    if file.exists() and read_json(file).get("key") == key.sha256:
        return read_json(file)
    train, held_out = preference_pairs(folder)
    gate = config.reward_model.gate
    if gate.max_pairs is not None and len(held_out) > gate.max_pairs:
        held_out = held_out.sample(gate.max_pairs, random_state=derive_seed(config.seed, "gate_pairs") % 2**32)
    if held_out.empty:
        raise ConfigError(
            f"the reward model {path} cannot be judged: there are no held-out preference pairs. Give data.preferences."
        )
    scored = held_out.assign(**_scores(runtime, path, held_out))
    margins = None if train.empty else word_baseline_margins(train, held_out)
    validation = validate_scores(scored, margins, gate.confidence)
    facts = {**validation.as_dict(), "failures": list(gate_failures(validation, gate)), "key": key.sha256, "path": path}
    columns = ["pair_id", "domain", "chosen_score", "rejected_score", "chosen_length", "rejected_length"]
    lengths = {f"{side}_length": scored[side].str.len() for side in ("chosen", "rejected")}
    with disk_errors(folder.reward_model):
        folder.reward_model.mkdir(parents=True, exist_ok=True)
        scored.assign(**lengths)[columns].to_parquet(folder.reward_model / VALIDATION_PAIRS, index=False)
    write_json(file, facts)
    record_event(
        folder,
        "reward_model",
        f"reward model {'refused' if facts['failures'] else 'accepted'}: accuracy {validation.accuracy.value:.3f} "
        f"[{validation.accuracy.low:.3f}, {validation.accuracy.high:.3f}] on {len(scored)} held-out pairs.",
        accuracy=validation.accuracy.value,
        beats_word_baseline=validation.beats_word_baseline,
        failures=facts["failures"],
    )
    return facts


def _scores(runtime: Runtime, path: str, held_out: pd.DataFrame) -> dict[str, Any]:
    config = runtime.config
    reward_model = load_reward_model(path, DialogueForm.of(config), runtime.device)
    pairs = _encoded(reward_model, held_out)
    with runtime.progress("reward model: held-out pairs", len(pairs)) as bar:
        scores = reward_model.score_pairs(pairs, max(1, config.reward.batch_size // 2), bar.advance)
    scores = scores.to(torch.float64).numpy()
    return {"chosen_score": scores[:, 0], "rejected_score": scores[:, 1]}
