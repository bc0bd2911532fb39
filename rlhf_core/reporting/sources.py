"""What a run's folder tells, read once: every part may be absent, none may be malformed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from rlhf_core.checkpoints.registry import RegistryState
from rlhf_core.config.evaluation import DecisionConfig
from rlhf_core.config.run import RunConfig
from rlhf_core.data.events import read_events
from rlhf_core.data.json_lines import read_json_lines
from rlhf_core.data.refs import BenchmarkScore, EvaluationResult
from rlhf_core.data.reward_model_record import RewardModelRecord, load_reward_model_record
from rlhf_core.data.store import RunFolder, read_json
from rlhf_core.decisions.decide import is_real_drop
from rlhf_core.errors import DataError
from rlhf_core.recovery.ledger import Attempt, read_attempts
from rlhf_core.reporting.timing import time_by_stage

EVALUATION_FILE = "evaluation.json"
FAILURE_EVENTS = frozenset({"failure"})

RunState = Literal["not started", "unfinished", "failed", "stopped", "finished"]


class GateDecision(BaseModel):
    """The part of `decision.json` that is shown."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: str
    reasons: tuple[str, ...] = ()
    promote: bool = False


@dataclass(frozen=True)
class Gate:
    """One round's end. The decision is None while the gate is still at work."""

    round: int
    evaluation: EvaluationResult
    decision: GateDecision | None


@dataclass(frozen=True)
class RunRecord:
    """All that the report and the status are made from."""

    folder: RunFolder
    config: RunConfig | None
    manifest: dict[str, Any]
    metrics: pd.DataFrame
    events: tuple[dict[str, Any], ...]
    baseline: EvaluationResult | None
    gates: tuple[Gate, ...]
    reward_model: RewardModelRecord | None
    registry: RegistryState
    attempts: tuple[Attempt, ...]

    @property
    def name(self) -> str:
        return self.config.name if self.config else self.folder.path.name

    @property
    def iteration(self) -> int:
        """The last iteration with metrics; 0 before the first."""
        return max(self.metrics.index.tolist(), default=0)

    @cached_property
    def time_by_stage(self) -> pd.DataFrame:
        return time_by_stage(self.folder)

    @property
    def confidence(self) -> float:
        """Level of all intervals of the gates."""
        return self._policy.confidence

    def is_real_drop(self, score: BenchmarkScore) -> bool:
        """Whether a benchmark's loss counts as more than noise, by the gate's own rule."""
        return is_real_drop(score, self._policy)

    @property
    def _policy(self) -> DecisionConfig:
        return self.config.decisions if self.config else DecisionConfig.model_validate({})

    @property
    def last_decision(self) -> GateDecision | None:
        decided = [gate.decision for gate in self.gates if gate.decision]
        return decided[-1] if decided else None

    @property
    def state(self) -> RunState:
        """Where the run stands, by the files it has left."""
        if self.last_decision and self.last_decision.kind == "stop":
            return "stopped"
        decided = sum(gate.decision is not None for gate in self.gates)
        if self.config and decided >= self.config.rounds:
            return "finished"
        if self.events and self.events[-1]["kind"] in FAILURE_EVENTS:
            return "failed"
        return "unfinished" if self.baseline or len(self.metrics) or self.events else "not started"

    @property
    def best_step(self) -> int | None:
        """Step of the promoted checkpoint that counts as best; None before a gate was passed (step 0 is the start)."""
        return self.registry.best or None

    @property
    def outcome(self) -> Gate | None:
        """The gate that judged the best checkpoint; otherwise the last one."""
        of_best = [gate for gate in self.gates if self.best_step is not None and gate.evaluation.step == self.best_step]
        promoted = [gate for gate in self.gates if gate.decision and gate.decision.promote]
        candidates = of_best or promoted or list(self.gates)
        return candidates[-1] if candidates else None

    def last(self, metric: str) -> float | None:
        """The latest value of a metric; None where it was never finite."""
        return next(reversed(finite_of(self.metrics, metric)), None)


def load_run(folder: RunFolder) -> RunRecord:
    """Read everything small that lies in the run folder.

    Raises:
        DataError: the folder is absent, or a file in it cannot be read as what it should be.
    """
    if not folder.path.is_dir():
        raise DataError(f"{folder.path} is no run folder: it does not exist. Give the path runs/NAME of a run.")
    return RunRecord(
        folder=folder,
        config=_config(folder.config),
        manifest=_json_object(folder.manifest),
        metrics=load_metrics(folder),
        events=tuple(read_events(folder)),
        baseline=_evaluation(folder.baseline / EVALUATION_FILE),
        gates=_gates(folder),
        reward_model=load_reward_model_record(folder.reward_model),
        registry=_registry(folder.checkpoints / "REGISTRY.json"),
        attempts=read_attempts(folder),
    )


def load_metrics(folder: RunFolder) -> pd.DataFrame:
    """Rows by iteration as float64, columns sorted by name; NaN where an iteration lacks a metric."""
    return metrics_frame(read_json_lines(folder.metrics / "metrics.jsonl"))


def values_of(frame: pd.DataFrame, metric: str) -> list[float]:
    """A metric's values by iteration; NaN where it was not measured."""
    return cast(Any, frame[metric]).to_numpy(dtype=float).tolist()


def finite_of(frame: pd.DataFrame, metric: str) -> list[float]:
    """The measured values of a metric; empty where no iteration has it."""
    return [value for value in values_of(frame, metric) if math.isfinite(value)] if metric in frame else []


def metrics_frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows of `metrics.jsonl` as a frame indexed by iteration."""
    names = sorted({name for row in rows for name in row} - {"iteration"})
    index = pd.Index([row["iteration"] for row in rows], name="iteration", dtype="int64")
    columns = {name: [row.get(name) for row in rows] for name in names}
    return pd.DataFrame(columns, index=index, columns=names, dtype="float64")


def _config(path: Path) -> RunConfig | None:
    if not path.exists():
        return None
    try:
        return RunConfig.model_validate(yaml.safe_load(path.read_text()))
    except (yaml.YAMLError, ValidationError) as error:
        raise DataError(f"{path} is not this version's configuration: {error}") from error


def _json_object(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{path} holds a {type(value).__name__}, not an object. Remove it and resume the run.")
    return value


def _registry(path: Path) -> RegistryState:
    try:
        return RegistryState.model_validate(_json_object(path))
    except ValidationError as error:
        raise DataError(
            f"{path} is not a checkpoint registry: {error}. Restore the file, then resume the run."
        ) from error


def _evaluation(path: Path) -> EvaluationResult | None:
    if not path.exists():
        return None
    try:
        return EvaluationResult.model_validate(read_json(path))
    except ValidationError as error:
        raise DataError(f"{path} is not an evaluation: {error}. Remove its folder and resume the run.") from error


def _gates(folder: RunFolder) -> tuple[Gate, ...]:
    gates: list[Gate] = []
    for path in sorted((folder.path / "rounds").glob("[0-9][0-9][0-9]")):
        evaluation = _evaluation(path / "evaluation" / EVALUATION_FILE)
        if evaluation is None:
            continue
        gates.append(Gate(round=int(path.name), evaluation=evaluation, decision=_decision(path / "decision.json")))
    return tuple(gates)


def _decision(path: Path) -> GateDecision | None:
    if not path.exists():
        return None
    try:
        return GateDecision.model_validate(read_json(path))
    except ValidationError as error:
        raise DataError(f"{path} is not a decision: {error}. Remove it and resume the run.") from error
