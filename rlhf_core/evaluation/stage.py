"""The baseline before any training (E1) and the measurements of each gate (E2)."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from rlhf_core.checkpoints.records import read_registry
from rlhf_core.checkpoints.stage import start_policy
from rlhf_core.config.run import RunConfig
from rlhf_core.data import prepared
from rlhf_core.data.collate import rollout_tensors
from rlhf_core.data.events import record_event
from rlhf_core.data.refs import CheckpointRef, EvaluationResult, StageRef
from rlhf_core.data.reward_model_record import VALIDATION
from rlhf_core.data.store import (
    MANIFEST,
    RunFolder,
    StageKey,
    file_sha256,
    finish_stage,
    finished_stage,
    load_stage,
    read_json,
    read_table,
    stage_folder,
    write_json,
    write_table,
)
from rlhf_core.errors import CheckpointError, DataError, NumericsError
from rlhf_core.evaluation.benchmarks import ITEM_SCHEMA, answer_benchmarks
from rlhf_core.evaluation.comparison import benchmark_scores, blind_benchmarks
from rlhf_core.evaluation.held_out import HELD_OUT_SCHEMA, paired_gain, reward_statistics, sample_held_out, scored
from rlhf_core.evaluation.local_tasks import write_local_task
from rlhf_core.evaluation.perplexity import perplexity
from rlhf_core.models.loading import pad_token_id
from rlhf_core.numerics.masking import masked_mean
from rlhf_core.runtime import Runtime

EVALUATION = "evaluation.json"
ITEMS = "items.parquet"
HELD_OUT = "held_out.parquet"
CALIBRATION = "reward_calibration.json"
_CHOICES_PER_ITEM = 4


def run_baseline(runtime: Runtime) -> EvaluationResult:
    """Measure the SFT model: abilities, then the reward, which needs the accepted reward model.

    Writes `baseline/evaluation.json` and `baseline/reward_calibration.json` (mean and std of the raw reward, after
    `reward.raw_clip`, as they will normalise). What `run_ability_baseline` measured before is not measured again.
    """
    folder = runtime.folder
    ability = run_ability_baseline(runtime)
    reward = run_reward_baseline(runtime)
    items = read_table(ability.path / ITEMS)
    mean, std = reward.metrics["held_out_reward"], reward.metrics["held_out_reward_std"]
    result = EvaluationResult(
        step=0,
        benchmarks=benchmark_scores(items, items, runtime.config.decisions.confidence, runtime.config.evaluation.seed),
        perplexity=ability.metrics.get("perplexity"),
        held_out_reward=mean,
        held_out_reward_std=std,
        path=folder.baseline,
    )
    raw = read_table(reward.path / HELD_OUT)["reward_raw"].to_numpy("float64")
    calibration = reward_statistics(raw, runtime.config.reward.raw_clip)
    write_json(folder.baseline / CALIBRATION, dict(zip(("mean", "std"), calibration, strict=True)))
    write_json(folder.baseline / EVALUATION, result.model_dump(mode="json"))
    return result


def load_baseline(folder: RunFolder) -> EvaluationResult:
    """What `run_baseline` measured.

    Raises:
        DataError: it did not run yet, or the file is damaged.
    """
    return _load(folder.baseline)


def run_ability_baseline(runtime: Runtime) -> StageRef:
    """Benchmarks and perplexity of the SFT model in `baseline/ability`; needs no reward model."""
    config, final = runtime.config, runtime.folder.baseline / "ability"
    tasks = prepare_tasks(runtime)
    inputs = {"tasks": tasks.sha256, "prompts": load_stage(runtime.folder.prompts).sha256}
    key = StageKey("ability_baseline", inputs, _settings(config))
    if stored := finished_stage(final, key):
        return stored
    items, found = _abilities(runtime, _sft_policy(runtime))
    with stage_folder(final) as partial:
        write_table(partial / ITEMS, items, ITEM_SCHEMA)
        finish_stage(partial, key, rows=len(items), metrics={} if found is None else {"perplexity": found})
    _report_blind_benchmarks(runtime, items)
    return load_stage(final)


def _report_blind_benchmarks(runtime: Runtime, items: pd.DataFrame) -> None:
    """Say once which benchmarks the SFT model answers no better than by guessing."""
    for name, (accuracy, chance) in blind_benchmarks(items, runtime.config.decisions.confidence).items():
        record_event(
            runtime.folder,
            "blind_benchmark",
            f"{name}: the SFT model answers {accuracy:.1%} rightly, which is not above guessing ({chance:.1%}), so the "
            "gate cannot see abilities fall there. Take items that the model can answer: for a small model "
            "`answers: texts` instead of letters, or `fewshot`.",
            benchmark=name,
            accuracy=accuracy,
            chance=chance,
        )


def run_reward_baseline(runtime: Runtime) -> StageRef:
    """The SFT model's rewards on held-out prompts in `baseline/reward`.

    Raises:
        DataError: no response got a finite reward.
        NumericsError: the SFT model gives NaN or infinite numbers.
    """
    config, final = runtime.config, runtime.folder.baseline / "reward"
    validation = runtime.folder.reward_model / VALIDATION
    inputs = {
        "prompts": load_stage(runtime.folder.prompts).sha256,
        "reward_model": file_sha256(validation) if validation.exists() else "",
    }
    scoring = [config.reward.model_dump(mode="json"), config.reward_model.model_dump(mode="json", exclude={"gate"})]
    key = StageKey("reward_baseline", inputs, [*_settings(config), *scoring])
    if stored := finished_stage(final, key):
        return stored
    frame, _ = _held_out(runtime, _sft_policy(runtime))
    mean, std = reward_statistics(frame["reward_raw"].to_numpy("float64"))
    if math.isnan(mean):
        raise DataError(
            f"none of {len(frame)} held-out responses of the SFT model got a finite reward; "
            f"{list(frame['finish_reason']).count('length')} were cut at the length limit, and cut ones are "
            f"{'' if config.reward.scores_truncated else 'not '}scored. Raise rollout.max_new_tokens, set "
            "reward.score_truncated=true, or check the reward model or callable."
        )
    with stage_folder(final) as partial:
        write_table(partial / HELD_OUT, frame, HELD_OUT_SCHEMA)
        metrics = {"held_out_reward": mean, "held_out_reward_std": std}
        finish_stage(partial, key, rows=len(frame), metrics=metrics)
    return load_stage(final)


def run_gate(runtime: Runtime, policy: CheckpointRef, round_number: int) -> EvaluationResult:
    """Measure a checkpoint and compare it with the baseline, item by item and prompt by prompt.

    Writes `rounds/NNN/evaluation/`. A policy whose numbers are NaN or infinite gets NaN as its reward and KL, so that
    the decision can answer; it does not fail the stage.

    Raises:
        DataError: the baseline is missing, or its items are others.
    """
    config, folder = runtime.config, runtime.folder
    final = folder.round(round_number) / "evaluation"
    if not (folder.baseline / EVALUATION).exists():
        raise DataError(f"{folder.baseline} holds no finished baseline to compare with. Run the baseline first.")
    ability, reward = load_stage(folder.baseline / "ability"), load_stage(folder.baseline / "reward")
    inputs = {"policy": file_sha256(policy.path / MANIFEST), "ability": ability.sha256, "reward": reward.sha256}
    key = StageKey("gate", inputs, [*_settings(config), config.decisions.confidence])
    if finished_stage(final, key):
        return _load(final)
    confidence, seed = config.decisions.confidence, config.evaluation.seed
    items, found = _abilities(runtime, policy)
    held_out, kl_nats = _held_out_or_nothing(runtime, policy, round_number)
    before = read_table(reward.path / HELD_OUT)
    gain = paired_gain(before, held_out, confidence=confidence, seed=seed)
    mean, std = reward_statistics(held_out["reward_raw"].to_numpy("float64"))
    result = EvaluationResult(
        step=policy.step,
        benchmarks=benchmark_scores(read_table(ability.path / ITEMS), items, confidence, seed),
        perplexity=found,
        held_out_reward=mean,
        held_out_reward_std=std,
        reward_gain=gain.value,
        reward_gain_low=gain.low,
        reward_gain_high=gain.high,
        held_out_kl_nats=kl_nats,
        path=final,
    )
    with stage_folder(final) as partial:
        write_table(partial / ITEMS, items, ITEM_SCHEMA)
        write_table(partial / HELD_OUT, held_out, HELD_OUT_SCHEMA)
        write_json(partial / EVALUATION, result.model_dump(mode="json"))
        finish_stage(partial, key, rows=len(items), metrics=_gate_metrics(result))
    return _load(final)


def prepare_tasks(runtime: Runtime) -> StageRef:
    """The fixed items of the benchmarks with a local path, in `baseline/tasks`; every evaluation reads them."""
    config, final = runtime.config, runtime.folder.baseline / "tasks"
    local = [benchmark for benchmark in config.evaluation.benchmarks if benchmark.path]
    inputs = {one.name: _source_hash(config.data.root / str(one.path)) for one in local}
    settings = [config.evaluation.seed, *(one.model_dump(mode="json") for one in local)]
    key = StageKey("benchmark_tasks", inputs, settings)
    if stored := finished_stage(final, key):
        return stored
    with stage_folder(final) as partial:
        counts = [write_local_task(one, config.data.root, partial, final, config.evaluation.seed) for one in local]
        finish_stage(partial, key, rows=sum(counts), metrics={})
    return load_stage(final)


def _abilities(runtime: Runtime, policy: CheckpointRef) -> tuple[pd.DataFrame, float | None]:
    """Answers to the benchmarks' items, and perplexity on held-out general text (None without such text)."""
    evaluation = runtime.config.evaluation
    workers = runtime.at(policy)
    documents = prepared.ptx_documents(runtime.folder, held_out=True)
    requests = _CHOICES_PER_ITEM * sum(one.items or 0 for one in evaluation.benchmarks)
    with runtime.progress("benchmarks", requests) as bar:
        tasks = runtime.folder.baseline / "tasks"
        items = answer_benchmarks(workers, runtime.tokenizer, evaluation, tasks, bar.advance)
        return items, perplexity(workers, documents, batch_size=evaluation.batch_size)


def _held_out(runtime: Runtime, policy: CheckpointRef) -> tuple[pd.DataFrame, float]:
    """Scored responses to held-out prompts, and the mean exact KL to the reference over all their tokens, in nats."""
    config = runtime.config
    prompts = prepared.held_out_prompts(runtime.folder)
    engine = runtime.rollout_engine(policy)
    frame = sample_held_out(engine, runtime.tokenizer, prompts, config.rollout, config.evaluation)
    rollouts = rollout_tensors(frame, pad_token_id(runtime.tokenizer))
    kl = runtime.at(policy).evaluate_rollouts(rollouts).kl_exact_nats.cpu()
    mask = rollouts.response_mask.cpu()
    by_row = kl.sum(dim=1) / mask.sum(dim=1)
    judged = frame.assign(kl_nats=by_row.tolist())
    return (
        scored(judged, runtime.scorer(), scores_truncated=config.reward.scores_truncated),
        float(masked_mean(kl, mask)),
    )


def _held_out_or_nothing(runtime: Runtime, policy: CheckpointRef, round_number: int) -> tuple[pd.DataFrame, float]:
    """The same; a policy that gives NaN has no responses and a KL of NaN, which the decision answers."""
    try:
        return _held_out(runtime, policy)
    except NumericsError as error:
        record_event(
            runtime.folder,
            "non_finite",
            f"checkpoint {policy.step} cannot be judged on held-out prompts: {error}",
            iteration=policy.step,
            round=round_number,
        )
        return HELD_OUT_SCHEMA.empty_table().to_pandas(), math.nan


def _sft_policy(runtime: Runtime) -> CheckpointRef:
    """The checkpoint of step 0, saved where it is not there yet."""
    policy = start_policy(runtime)
    if policy.step == 0:
        return policy
    entry = read_registry(runtime.folder).checkpoints.get(0)
    if entry is None or not entry.ref.path.exists():
        raise CheckpointError(
            f"the baseline is missing and checkpoint 0, of which it is measured, is not kept any more. Restore "
            f"{runtime.folder.baseline}, or start the run under another name."
        )
    return entry.ref


def _load(folder: Path) -> EvaluationResult:
    return EvaluationResult.model_validate(read_json(folder / EVALUATION) | {"path": folder})


def _settings(config: RunConfig) -> list[object]:
    parts = (config.evaluation, config.rollout, config.model)
    return [part.model_dump(mode="json") for part in parts]


def _gate_metrics(result: EvaluationResult) -> dict[str, float]:
    metrics = {f"evaluation/{score.name}_accuracy": score.accuracy for score in result.benchmarks}
    if result.perplexity is not None:
        metrics["evaluation/perplexity"] = result.perplexity
    return metrics | {
        "evaluation/held_out_reward": result.held_out_reward,
        "evaluation/reward_gain": result.reward_gain,
        "evaluation/held_out_kl_nats": result.held_out_kl_nats,
    }


def _source_hash(path: Path) -> str:
    """SHA-256 of a file, or of all files of a folder with their names; a missing one is reported when it is read."""
    files = [path] if path.is_file() else sorted(path.rglob("*.csv"))
    return " ".join(f"{file.relative_to(path)}:{file_sha256(file)}" for file in files)
