"""The run's report: one HTML file that needs no network, made from the run folder alone (V3)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from rlhf_core.data.store import RunFolder, write_bytes
from rlhf_core.reporting import headline, plots, tables
from rlhf_core.reporting.acceptance_section import acceptance_table
from rlhf_core.reporting.data_section import data_docs, data_facts, quarantine_sentence
from rlhf_core.reporting.reward_model_section import reward_model_section
from rlhf_core.reporting.samples import extremes, prompt_outliers, recent_rollouts, reward_histogram
from rlhf_core.reporting.sources import RunRecord, load_run
from rlhf_core.reporting.training_panels import training_panels

TEMPLATES = Path(__file__).parent / "templates"
SAMPLE_WINDOW = 5
"""Iterations whose rollouts are shown and searched for outliers."""

_PLOTLY_SETTINGS = {"displayModeBar": False, "responsive": True}


def write_report(folder: RunFolder) -> Path:
    """Write `report.html` for a run in any state: unfinished, failed, with parts missing.

    Raises:
        DataError: the folder does not exist, or a file in it is malformed.
    """
    page = render(load_run(folder))
    write_bytes(folder.report, page.encode("utf-8", errors="replace"))
    return folder.report


def render(run: RunRecord) -> str:
    """The page as text. Everything that a model, a data set or a user wrote is escaped."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = _figures(run)
    return environment.get_template("report.html.j2").render(
        run=run,
        css=Markup((TEMPLATES / "report.css").read_text()),
        plotly_js=Markup(get_plotlyjs()) if any(figures.values()) else "",
        figures=figures,
        training_figures=[name for name in figures if name.startswith("training/") and figures[name]],
        **_headline(run),
        **_sections(run),
        **_samples(run),
    )


def _headline(run: RunRecord) -> dict[str, Any]:
    return {
        "state_sentence": headline.state_sentence(run),
        "outcome_sentence": headline.outcome_sentence(run),
        "tiles": headline.tiles(run),
        "next_steps": headline.next_steps(run),
    }


def _figures(run: RunRecord) -> dict[str, Markup | None]:
    figures = {
        "control": plots.control_figure(run),
        "held_out": plots.held_out_figure(run),
        "density": plots.density_figure(reward_histogram(run.folder)),
        "ability": plots.ability_figure(run),
        "training/endings": plots.endings_figure(run.metrics),
    }
    for number, panel in enumerate(training_panels(run.config)):
        figures[f"training/{number}"] = plots.panel_figure(run.metrics, panel)
    return {name: _html(figure, name.replace("/", "-")) for name, figure in figures.items()}


def _html(figure: go.Figure | None, name: str) -> Markup | None:
    """The figure as a div; plotly escapes what could end its script element."""
    if figure is None:
        return None
    text = figure.to_html(
        full_html=False, include_plotlyjs=False, config=_PLOTLY_SETTINGS, div_id=f"figure-{name}", default_width="100%"
    )
    return Markup(text)


def _sections(run: RunRecord) -> dict[str, Any]:
    return {
        "gates": [(gate, tables.gate_table(run, gate)) for gate in run.gates],
        "acceptance": acceptance_table(run),
        "events": tables.event_table(run.events),
        "attempts": tables.attempt_table(run.attempts),
        "reward_model": reward_model_section(run.reward_model),
        "data_facts": data_facts(run.folder),
        "quarantine": quarantine_sentence(run.metrics),
        "data_docs": data_docs(run.folder),
        "config": tables.config_table(run),
        "manifest": tables.facts_table({name: value for name, value in run.manifest.items() if name != "config"}),
        "times": tables.time_table(run.time_by_stage),
        "places": tables.table(("what", "where, inside the run folder"), _places(run.folder)),
    }


def _samples(run: RunRecord) -> dict[str, Any]:
    rollouts = recent_rollouts(run.folder, SAMPLE_WINDOW)
    if rollouts is None or rollouts.empty:
        return {"best": None, "worst": None, "outliers": None, "sample_window": 0}
    best, worst = extremes(rollouts)
    return {
        "best": _rows(best),
        "worst": _rows(worst),
        "outliers": tables.outlier_table(prompt_outliers(rollouts)),
        "sample_window": len(set(rollouts["iteration"])),
    }


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def _places(folder: RunFolder) -> Iterable[tuple[str, str]]:
    places = (
        ("best promoted policy (Hugging Face folder)", folder.best),
        ("all checkpoints and their status", folder.checkpoints / "REGISTRY.json"),
        ("reward model", folder.reward_model),
        ("metrics, a row per iteration", folder.metrics / "metrics.jsonl"),
        ("TensorBoard", folder.tensorboard),
        ("rollouts and rewards of each iteration", folder.path / "iterations"),
        ("gates: evaluations and decisions", folder.path / "rounds"),
        ("baseline evaluation", folder.baseline),
        ("events", folder.events),
        ("every attempt at every stage", folder.ledger),
        ("the whole configuration", folder.config),
    )
    for what, path in places:
        if os.path.lexists(path):
            yield what, str(path.relative_to(folder.path))
