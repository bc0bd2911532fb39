"""Decide on a round, from the records in the run folder, and keep the decision there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_core.data.events import record_event
from rlhf_core.data.refs import CheckpointRef, EvaluationResult
from rlhf_core.data.store import RunFolder, read_json, write_json
from rlhf_core.decisions.decide import decide
from rlhf_core.decisions.records import Decision, GateRecord, gate_record
from rlhf_core.runtime import Runtime


def run_stage(
    runtime: Runtime,
    round_number: int,
    policy: CheckpointRef,
    evaluation: EvaluationResult,
    baseline: EvaluationResult,
) -> Decision:
    """Decide on `policy`; writes `rounds/NNN/decision.json` and an event. A decision that stands is returned as it is.

    Args:
        runtime: of the run.
        round_number: from 1.
        policy: the judged checkpoint.
        evaluation: its gate's measurements, already compared with the baseline.
        baseline: the measurements before training; kept beside the decision for the report.
    """
    path = decision_path(runtime.folder, round_number)
    stored = _stored(path)
    if stored is not None and stored[0].step == policy.step:
        decision = stored[1]
    else:
        earlier = earlier_records(runtime.folder, round_number)
        record = gate_record(round_number, policy.control, evaluation)
        maximum = runtime.config.kl.maximum
        decision = decide((*earlier, record), runtime.config.decisions, kl_coef_maximum=maximum)
        write_json(
            path,
            {
                "round": round_number,
                **decision.model_dump(mode="json"),
                "gate": _finite(record.model_dump()),
                "evaluation": _finite(evaluation.model_dump()),
                "baseline": _finite(baseline.model_dump()),
            },
        )
    _record(runtime.folder, round_number, policy, decision)
    return decision


def decision_path(folder: RunFolder, round_number: int) -> Path:
    return folder.round(round_number) / "decision.json"


def earlier_records(folder: RunFolder, round_number: int) -> tuple[GateRecord, ...]:
    """Decided gates of the rounds before this one."""
    stored = (_stored(decision_path(folder, number)) for number in range(1, round_number))
    return tuple(record.model_copy(update={"decided": decision.kind}) for record, decision in filter(None, stored))


def _record(folder: RunFolder, round_number: int, policy: CheckpointRef, decision: Decision) -> None:
    record_event(
        folder,
        "decision",
        f"round {round_number}: {decision.kind.replace('_', ' ')}{', promoted' if decision.promote else ''}. "
        + "; ".join(decision.reasons),
        round=round_number,
        iteration=policy.step,
        decision=decision.kind,
        is_promoted=decision.promote,
    )
    if decision.control.ptx_coef != policy.control.ptx_coef:
        record_event(
            folder,
            "ptx_coef",
            f"ptx_coef {policy.control.ptx_coef:g} → {decision.control.ptx_coef:g}: {'; '.join(decision.reasons)}",
            round=round_number,
            iteration=policy.step,
            before=policy.control.ptx_coef,
            after=decision.control.ptx_coef,
        )


def _stored(path: Path) -> tuple[GateRecord, Decision] | None:
    if not path.exists():
        return None
    content = read_json(path)
    decision = {name: content[name] for name in Decision.model_fields}
    return GateRecord.model_validate(content["gate"]), Decision.model_validate(decision)


def _finite(value: Any) -> Any:
    """The value for strict JSON: NaN and infinities by name, which pydantic reads back."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
