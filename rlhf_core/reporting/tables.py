"""The report's tables as plain text cells; the page escapes every one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rlhf_core.data.refs import BenchmarkScore, EvaluationResult
from rlhf_core.recovery.ledger import Attempt, notable
from rlhf_core.reporting.headline import Tone
from rlhf_core.reporting.sources import Gate, RunRecord


@dataclass(frozen=True)
class Cell:
    text: str
    tone: Tone = "plain"


@dataclass(frozen=True)
class Table:
    """`numeric` names the columns that are set flush right."""

    headers: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numeric: frozenset[int] = frozenset()


def table(headers: Iterable[str], rows: Iterable[Iterable[str | Cell]], numeric: Iterable[int] = ()) -> Table:
    """A table of cells; a plain string is a cell without a tone."""
    cells = tuple(tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row) for row in rows)
    return Table(tuple(headers), cells, frozenset(numeric))


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def points(value: float) -> str:
    """A share as percentage points with its sign."""
    return f"{100 * value:+.1f}"


def number(value: Any) -> str:
    """Four significant digits; a dash where nothing was measured."""
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def gate_table(run: RunRecord, gate: Gate) -> Table:
    """One gate: each benchmark, perplexity, held-out reward and KL against the baseline."""
    baseline = run.baseline
    before = {score.name: score for score in baseline.benchmarks} if baseline else {}
    rows = [_benchmark_row(run, score, before.get(score.name)) for score in gate.evaluation.benchmarks]
    now = gate.evaluation
    if now.perplexity is not None:
        old = number(baseline.perplexity) if baseline else "–"
        rows.append(("perplexity on held-out text", old, number(now.perplexity), "", "", ""))
    old = f"{baseline.held_out_reward:.3f}" if baseline else "–"
    rows.append(("reward on held-out prompts", old, f"{now.held_out_reward:.3f}", "", "", ""))
    rows.append(("gain of that reward, in the baseline's std", "0", _gain(now), "", "", ""))
    rows.append(("KL on held-out prompts, nats per token", "0", number(now.held_out_kl_nats), "", "", ""))
    return table(("measure", "baseline", "now", "drop, points (interval)", "p", "verdict"), rows, (1, 2, 3, 4))


def _gain(now: EvaluationResult) -> str:
    return f"{now.reward_gain:+.2f} ({now.reward_gain_low:+.2f} to {now.reward_gain_high:+.2f})"


def _benchmark_row(run: RunRecord, score: BenchmarkScore, before: BenchmarkScore | None) -> tuple[str | Cell, ...]:
    drop = f"{points(score.drop)} ({points(score.drop_low)} to {points(score.drop_high)})"
    now = f"{percent(score.accuracy)} ({percent(score.low)} to {percent(score.high)})"
    old = percent(before.accuracy) if before else "–"
    return (
        f"{score.name}, {score.items} items",
        old,
        now,
        drop,
        f"{score.p_value:.3g}",
        _drop_verdict(run, score),
    )


def _drop_verdict(run: RunRecord, score: BenchmarkScore) -> Cell:
    if run.is_real_drop(score):
        within = run.config is not None and score.drop <= run.config.decisions.tolerated_drop
        return Cell("real, tolerated drop", "warn") if within else Cell("real drop", "bad")
    return Cell("real rise", "good") if score.drop_high < 0 else Cell("no proven change", "good")


def event_table(events: Iterable[Mapping[str, Any]]) -> Table:
    """All events in order."""
    rows = [
        (
            str(event.get("time", ""))[:19].replace("T", " "),
            number(event.get("iteration")),
            number(event.get("round")),
            str(event["kind"]).replace("_", " "),
            str(event["message"]),
        )
        for event in events
    ]
    return table(("time (UTC)", "iteration", "round", "kind", "what happened"), rows, (1, 2))


def attempt_table(attempts: Sequence[Attempt]) -> Table:
    """Attempts that did not end well, and those that retried something."""
    tones: dict[str | None, Tone] = {"ok": "good", "error": "bad", "lost": "warn", "interrupted": "warn"}
    rows = [
        (
            str(one.attempt),
            one.stage,
            number(one.iteration or None),
            Cell(one.outcome or "running", tones.get(one.outcome, "plain")),
            (one.error_class or "").replace("_", " "),
            one.words or "the run's own settings",
            one.message,
        )
        for one in notable(attempts)
    ]
    return table(("attempt", "stage", "iteration", "outcome", "class", "settings", "what went wrong"), rows, (0, 2))


def time_table(stages: pd.DataFrame) -> Table:
    """Seconds by stage."""
    rows = [
        (
            str(stage).replace("_", " "),
            str(int(row["calls"])),
            f"{row['seconds']:.1f}",
            f"{row['mean_seconds']:.2f}",
            percent(row["share"]),
        )
        for stage, row in zip(stages.index, stages.to_dict("records"), strict=True)
    ]
    return table(("stage", "calls", "seconds", "seconds per call", "share"), rows, (1, 2, 3, 4))


def facts_table(facts: Mapping[str, Any], prefix: str = "") -> Table:
    """Nested facts as rows of dotted name and value."""
    return table(("fact", "value"), [(name, number(value)) for name, value in _flat(facts, prefix)])


def _flat(facts: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, Any]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{name}", ", ".join(number(item) for item in value)
        else:
            yield f"{prefix}{name}", value


def config_table(run: RunRecord) -> Table | None:
    """The settings that a reader asks for first; the whole configuration lies in config.yaml."""
    config = run.config
    if config is None:
        return None
    ptx = (
        f"from {config.ppo.ptx.coef:g}, every {config.ppo.ptx.every_updates} updates"
        if config.ppo.ptx.enabled
        else "off"
    )
    scorer = (
        config.reward_model.path or "trained here" if config.reward.scorer == "reward_model" else "a Python callable"
    )
    rows = [
        ("policy starts from", config.model.policy),
        ("reward", f"{scorer}; {config.reward.normalisation} normalisation, clipped at ±{config.reward.clip:g}"),
        ("length of the run", f"{config.rounds} rounds of {config.iterations_per_round} iterations"),
        (
            "rollouts per iteration",
            f"{config.rollout.prompts_per_iteration} prompts × {config.rollout.samples_per_prompt}, "
            f"up to {config.rollout.max_new_tokens} tokens at temperature {config.rollout.temperature:g}",
        ),
        (
            {"ppo": "PPO", "grpo": "GRPO", "rloo": "RLOO"}.get(config.algorithm.kind, "REINFORCE++"),
            f"{config.ppo.epochs} epochs, mini-batches of {config.ppo.mini_batch_rollouts}, "
            f"clip range {config.ppo.clip_range:g}",
        ),
        (
            "learning rates",
            f"actor {config.ppo.actor.learning_rate:g} ({config.ppo.actor.schedule}), "
            + (
                f"critic {config.ppo.critic_optimizer.learning_rate:g} ({config.ppo.critic.schedule})"
                if config.algorithm.has_critic
                else "no critic"
            ),
        ),
        (
            "KL control",
            f"{config.kl.kind}, target {config.kl.target_nats:g} nats per token, β from {config.kl.start:g}",
        ),
        ("ptx (γ)", ptx),
        (
            "gate",
            f"tolerates {config.decisions.tolerated_drop:.1%}, rolls back at {config.decisions.rollback_drop:.1%}, "
            f"stops at KL {config.decisions.kl_limit_nats:g}",
        ),
        ("precision", f"weights float32, autocast {config.model.autocast}"),
        ("seed", str(config.seed)),
    ]
    return table(("setting", "value"), rows)


def outlier_table(outliers: pd.DataFrame) -> Table:
    """Prompts that stand out, the farthest first."""
    has_kl = "kl_nats" in outliers
    headers = ["prompt", "domain", "rollouts", "reward", "z", *(["KL", "z"] if has_kl else [])]
    rows = [
        [
            _cut(str(row["prompt"]), 160),
            str(row["domain"]),
            str(row["rollouts"]),
            number(row["reward_raw"]),
            f"{row['reward_z']:+.1f}",
            *([number(row["kl_nats"]), f"{row['kl_z']:+.1f}"] if has_kl else []),
        ]
        for row in outliers.to_dict("records")
    ]
    return table(headers, rows, range(2, len(headers)))


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"
