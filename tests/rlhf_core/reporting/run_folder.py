"""Writes a plausible run folder: what a run leaves behind, without running one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from rlhf_core.checkpoints.registry import Entry, Registry, RegistryState
from rlhf_core.config.run import RunConfig
from rlhf_core.data.events import record_event
from rlhf_core.data.records import SCORED_SCHEMA
from rlhf_core.data.refs import BenchmarkScore, CheckpointRef, ControlState, EvaluationResult
from rlhf_core.data.store import RunFolder, StageKey, finish_stage, stage_folder, write_json, write_table
from rlhf_core.reporting.metrics import record_iteration
from rlhf_core.reporting.timing import record_timing

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)> & \"quotes\" </pre>"


def make_run(path: Path, *, rounds: int = 2, per_round: int = 5, done: int | None = None, seed: int = 0) -> RunFolder:
    """A run of `rounds` × `per_round` iterations of which `done` are recorded (all, by default)."""
    folder, draw = RunFolder(path), np.random.default_rng(seed)
    done = rounds * per_round if done is None else done
    write_config(folder, rounds, per_round)
    write_json(
        folder.manifest, {"versions": {"torch": "2.13.0", "python": "3.11.2"}, "seed": seed, "hardware": {"cpus": 2}}
    )
    write_baseline(folder)
    write_reward_model(folder)
    write_data(folder)
    for iteration in range(1, done + 1):
        write_iteration(folder, iteration, draw)
        if iteration % per_round == 0:
            write_gate(folder, iteration // per_round, iteration)
    return folder


def write_config(folder: RunFolder, rounds: int, per_round: int) -> None:
    config = RunConfig.model_validate(
        {
            "name": folder.path.name,
            "home": str(folder.path.parent),
            "rounds": rounds,
            "iterations_per_round": per_round,
            "data": {
                "prompts": [{"path": "prompts.jsonl"}],
                "ptx": [{"path": "c4.txt", "format": "text"}],
                "preferences": {"train": [{"path": "pairs.jsonl"}]},
            },
            "model": {"policy": "models/sft"},
        }
    )
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.config.write_text(yaml.safe_dump(config.model_dump(mode="json")))


def evaluation(step: int, path: Path, *, reward: float = 0.0, drop: float = 0.0) -> EvaluationResult:
    scores = tuple(
        BenchmarkScore(
            name=name,
            accuracy=base - drop,
            low=base - drop - 0.04,
            high=base - drop + 0.04,
            items=500,
            drop=drop,
            drop_low=drop - 0.012,
            drop_high=drop + 0.012,
            p_value=0.41,
        )
        for name, base in (("mmlu", 0.312), ("hellaswag", 0.427))
    )
    return EvaluationResult(
        step=step,
        benchmarks=scores,
        perplexity=21.7 + drop,
        held_out_reward=reward,
        held_out_reward_std=1.1,
        reward_gain=reward / 1.1,
        reward_gain_low=reward / 1.1 - 0.3,
        reward_gain_high=reward / 1.1 + 0.3,
        held_out_kl_nats=0.0 if step == 0 else 0.014,
        path=path,
    )


def write_baseline(folder: RunFolder) -> None:
    write_json(folder.baseline / "evaluation.json", evaluation(0, folder.baseline).model_dump(mode="json"))


def share(value: float, pairs: int) -> dict[str, float]:
    return {"value": value, "low": value - 0.04, "high": value + 0.04, "pairs": pairs}


def write_reward_model(folder: RunFolder, **changes: Any) -> None:
    facts = {
        "accuracy": share(0.634, 500),
        "by_domain": {"helpful": share(0.65, 320), "harmless": share(0.61, 180)},
        "length_correlation": 0.31,
        "length_correlation_low": 0.24,
        "length_correlation_high": 0.37,
        "shorter_preferred_accuracy": share(0.48, 210),
        "longer_wins_accuracy": share(0.569, 500),
        "word_baseline_accuracy": share(0.605, 500),
        "score_mean": 0.2,
        "score_std": 1.3,
        "confidence": 0.95,
        "failures": [],
        "key": "0",
        "path": "reward_model/model",
    }
    write_json(folder.reward_model / "validation.json", facts | changes)


def write_data(folder: RunFolder) -> None:
    with stage_folder(folder.prompts) as partial:
        (partial / "left_out.jsonl").write_text("{}\n")
        counts = {
            "data/prompts": 1840.0,
            "data/left_out_too_long": 12.0,
            "data/preference_pairs_train": 2400.0,
            "data/preference_pairs_held_out": 500.0,
        }
        finish_stage(partial, StageKey("data", {}, {}), rows=1840, metrics=counts)
    docs = folder.validation / "data_docs" / "index.html"
    docs.parent.mkdir(parents=True)
    docs.write_text("<h1>Data Docs</h1>")


def write_iteration(folder: RunFolder, iteration: int, draw: np.random.Generator) -> None:
    rewards = draw.normal(0.16 * iteration, 1.1, 32)
    record_iteration(folder, iteration, iteration_metrics(iteration, rewards, draw))
    for stage, seconds in (
        ("rollout", 8.1),
        ("rewards", 1.9),
        ("experience", 4.4),
        ("update", 17.2),
        ("checkpoint", 0.8),
    ):
        record_timing(folder, iteration, stage, seconds + draw.uniform(0, 0.5))
    write_rollouts(folder, iteration, rewards)


def iteration_metrics(iteration: int, rewards: np.ndarray, draw: np.random.Generator) -> dict[str, float]:
    quantiles = {f"reward/raw_p{q:02d}": float(np.quantile(rewards, q / 100)) for q in (5, 25, 50, 75, 95)}
    kl = 0.0016 * iteration + float(draw.uniform(0, 0.002))
    return quantiles | {
        "reward/raw_mean": float(rewards.mean()),
        "reward/raw_std": float(rewards.std()),
        "reward/clipped_fraction": 0.04,
        "experience/kl_exact_nats": kl,
        "experience/kl_penalty_nats": kl * 1.1,
        "control/kl_coef": 0.05 / 2 ** (iteration % 3),
        "control/ptx_coef": 0.05 if iteration < 6 else 0.1,
        "rollout/response_tokens_mean": 38.0 + iteration,
        "rollout/response_tokens_p95": 61.0,
        "rollout/natural_fraction": 0.7,
        "rollout/early_fraction": 0.05,
        "rollout/truncated_fraction": 0.25,
        "rollout/repeated_ngram_fraction": 0.08,
        "rollout/distinct_2": 0.7,
        "rollout/acceptance_rate": 0.9 - 0.1 * iteration,
        "rollout/acceptance_of_banned": 0.9 - 0.1 * iteration,
        "rollout/acceptance_in_trivia": 0.5,
        "experience/fluency_nats": -2.0,
        "experience/entropy_nats": 2.4 - 0.03 * iteration,
        "update/entropy_nats": 2.38 - 0.03 * iteration,
        "update/actor_grad_norm": float(draw.uniform(0.2, 0.7)),
        "update/critic_grad_norm": float(draw.uniform(0.5, 3)),
        "update/clip_fraction": float(draw.uniform(0.05, 0.2)),
        "update/approx_kl_nats": 0.008,
        "update/value_loss": 0.9 / iteration,
        "experience/explained_variance": 1 - 1 / iteration**0.5,
        "update/actor_learning_rate": 1e-6 * (1 - iteration / 20),
        "update/critic_learning_rate": 5e-6 * (1 - iteration / 20),
        "update/policy_loss": -0.01,
        "update/ptx_loss": 3.1,
        "experience/engine_mismatch_nats": 2e-5,
        "validation/rows": 32.0,
        "validation/quarantined": 0.0,
    }


def write_rollouts(folder: RunFolder, iteration: int, rewards: np.ndarray) -> None:
    count = len(rewards)
    frame = pd.DataFrame(
        {
            "iteration": iteration,
            "prompt_id": [f"p{n:03d}" for n in range(count)],
            "sample_index": 0,
            "domain": "helpful",
            "prompt": [f"How do I keep bread number {n} fresh for a week?" for n in range(count)],
            "response": [f"Wrap it in a cloth.\nKeep it dry. ({n})" for n in range(count)],
            "prompt_ids": [[1, 2]] * count,
            "response_ids": [[3, 4]] * count,
            "engine_logprobs": [[-1.0, -2.0]] * count,
            "seed": 1,
            "finish_reason": "eos",
            "ending": "natural",
            "attempts": 1,
            "rejected_by": None,
            "policy_step": iteration - 1,
            "reward_raw": rewards,
            "reward": rewards,
            "valid": True,
            "exclude_reason": None,
        }
    )
    frame.loc[int(rewards.argmax()), ["prompt", "response", "domain"]] = HOSTILE
    with stage_folder(folder.iteration(iteration) / "scored") as partial:
        write_table(partial / "scored.parquet", frame, SCORED_SCHEMA)
        finish_stage(partial, StageKey("rewards", {}, {}), rows=count, metrics={})


def write_gate(folder: RunFolder, number: int, step: int, *, kind: str = "continue") -> None:
    path = folder.round(number)
    found = evaluation(step, path / "evaluation", reward=0.15 * step, drop=0.004 * number)
    write_json(path / "evaluation" / "evaluation.json", found.model_dump(mode="json"))
    reasons = [
        "gate passed: ability kept; held-out reward +0.7 std of the baseline",
        "ptx_coef stays 0.05: ability is steady",
    ]
    write_json(
        path / "decision.json", {"kind": kind, "reasons": reasons, "promote": kind in ("continue", "adjust_ptx")}
    )
    ref = CheckpointRef(
        step=step, path=folder.checkpoints / f"step-{step:06d}", control=ControlState(kl_coef=0.05, ptx_coef=0.05)
    )
    write_json(ref.path / "policy" / "config.json", {})
    entry = Entry(ref=ref, status="promoted", score=found.held_out_reward)
    write_json(
        folder.checkpoints / "REGISTRY.json",
        RegistryState(
            checkpoints={step: entry}, current=ref, promoted=step, best=step, decided_rounds=number
        ).model_dump(mode="json"),
    )
    Registry(folder).promote(step, found.held_out_reward)  # Links best/, as a run does.
    record_event(folder, "ptx_coef", "γ from 0.05 to 0.1: " + HOSTILE, iteration=step, round=number)
