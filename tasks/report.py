"""The report: what happened in a run, as one HTML file."""

from __future__ import annotations

from prefect import get_run_logger

from rlhf_core.checkpoints.records import read_registry
from rlhf_core.data.events import read_events, record_event
from rlhf_core.data.store import RunFolder
from rlhf_core.reporting.report import write_report
from tasks.artifacts import publish_summary, telemetry
from tasks.notify import notify_completion
from tasks.retrying import stage_task
from tasks.run import Run, RunOutcome


@stage_task(run_name="report")
def conclude(run: Run) -> RunOutcome:
    """Write the report and say how the run ended."""
    folder = RunFolder(run.folder)
    report = write_report(folder)
    registry = read_registry(folder)
    best = registry.best_ref()
    outcome = RunOutcome(
        folder=run.folder,
        report=report,
        best_policy=folder.best,
        best_step=best.step if best is not None else 0,
        iterations=registry.last_step(),
    )
    get_run_logger().info("best policy: checkpoint %d, in %s; report: %s", outcome.best_step, folder.best, report)
    publish_summary(run, report)
    notify_completion(run, f"{outcome.iterations} iterations; best policy: checkpoint {outcome.best_step}.")
    return outcome


@telemetry
def record_failure(run: Run, error: Exception) -> None:
    """Note what ended the run, so that its report and status say so."""
    folder = RunFolder(run.folder)
    attempt = sum(event["kind"] == "failure" for event in read_events(folder)) + 1
    record_event(folder, "failure", f"{type(error).__name__}: {error}", attempt=attempt)


@telemetry
def report_failure(run: Run) -> None:
    """Write the report of a run that fails; the error that ended it must not be hidden by one of the report."""
    report = write_report(RunFolder(run.folder))
    get_run_logger().error("the run failed; what it did until then: %s", report)
    publish_summary(run, report)
