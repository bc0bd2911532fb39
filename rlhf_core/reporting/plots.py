"""The report's figures over iterations. Each is None where nothing was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from rlhf_core.reporting.plot_style import (
    ACCENT,
    BAND,
    BAND_DARK,
    SECOND,
    SERIES,
    iteration_axis,
    limit,
    line,
    pad_constant,
    panels,
)
from rlhf_core.reporting.samples import RewardHistogram
from rlhf_core.reporting.sources import RunRecord, finite_of, values_of

MARKED_EVENTS = frozenset({"rollback", "ptx_coef", "non_finite", "checkpoint_fallback", "failure"})


@dataclass(frozen=True)
class Panel:
    """One small figure: metrics by their legend names, with limits as (value, label)."""

    title: str
    metrics: dict[str, str]
    limits: tuple[tuple[float, str], ...] = ()


def control_figure(run: RunRecord) -> go.Figure | None:
    """Reward, KL and β over the same iterations, one above the other (K1), with events as vertical lines."""
    frame = run.metrics
    if "reward/raw_mean" not in frame:
        return None
    figure = panels(
        ["reward of the scorer: mean, 25–75 % and 5–95 % of the rollouts", _kl_title(frame), "β (kl_coef)"],
        height=620,
        row_heights=[0.44, 0.34, 0.22],
    )
    x = frame.index.tolist()
    for low, high, color in (("p05", "p95", BAND), ("p25", "p75", BAND_DARK)):
        _band(figure, frame, f"reward/raw_{low}", f"reward/raw_{high}", color)
    line(figure, x, values_of(frame, "reward/raw_mean"), name="mean reward")
    for name, color in (("experience/kl_exact_nats", ACCENT), ("experience/kl_penalty_nats", SECOND)):
        if name in frame:
            label = "KL, exact" if color == ACCENT else "KL in the penalty"
            line(figure, x, values_of(frame, name), name=label, color=color, row=2)
    if run.config:
        limit(figure, run.config.kl.target_nats, "target", row=2)
        highest = max(finite_of(frame, "experience/kl_exact_nats"), default=0.0)
        if highest > 0.4 * run.config.decisions.kl_limit_nats:
            limit(figure, run.config.decisions.kl_limit_nats, "limit: rolls back", row=2)
    if "control/kl_coef" in frame:
        line(figure, x, values_of(frame, "control/kl_coef"), name="β", row=3)
        figure.update_traces(line_shape="hv", selector={"name": "β"})
    _mark_events(figure, run)
    figure.update_yaxes(rangemode="tozero", row=2, col=1)
    figure.update_yaxes(rangemode="tozero", row=3, col=1)
    return iteration_axis(figure, x)


def _kl_title(frame: pd.DataFrame) -> str:
    title = "KL to the reference, nats per token"
    if "experience/kl_penalty_nats" not in frame:
        return title
    penalty = f"<span style='color:{SECOND}'>as it entered the reward</span>"
    return f"{title}: <span style='color:{ACCENT}'>exact</span>, {penalty}"


def held_out_figure(run: RunRecord) -> go.Figure | None:
    """Reward on the held-out prompts before training and at each gate, with 95 % intervals of the mean."""
    if run.baseline is None or not run.gates:
        return None
    figure = panels(["held-out reward, mean with 95 % interval"], height=290)
    points = [run.baseline, *(gate.evaluation for gate in run.gates)]
    rollouts = run.config.evaluation.held_out_rollouts if run.config else 0
    errors = [1.96 * point.held_out_reward_std / rollouts**0.5 if rollouts else 0.0 for point in points]
    steps = [point.step for point in points]
    figure.add_trace(
        go.Scatter(
            x=steps,
            y=[point.held_out_reward for point in points],
            name="held-out reward",
            mode="lines+markers",
            line={"color": ACCENT, "width": 2},
            marker={"size": 7},
            error_y={"array": errors, "color": ACCENT, "thickness": 1.2, "width": 5},
        )
    )
    limit(figure, run.baseline.held_out_reward, "baseline")
    return iteration_axis(figure, [*steps, *run.metrics.index], first=0)


def ability_figure(run: RunRecord) -> go.Figure | None:
    """γ (ptx_coef) above the benchmark scores that steer it, with their intervals."""
    points = [point for point in (run.baseline, *(gate.evaluation for gate in run.gates)) if point and point.benchmarks]
    has_ptx = max(finite_of(run.metrics, "control/ptx_coef"), default=0.0) > 0
    if not points and not has_ptx:
        return None
    titles = ["benchmark accuracy with interval"] * bool(points) + ["γ (ptx_coef)"] * has_ptx
    figure = panels(titles, height=220 + 150 * len(titles) - 60, row_heights=[0.66, 0.34] if len(titles) == 2 else None)
    names = sorted({score.name for point in points for score in point.benchmarks})
    for shift, (name, color) in enumerate(zip(names, SERIES * len(names), strict=False)):
        scores = [(point.step, score) for point in points for score in point.benchmarks if score.name == name]
        offset = 0.06 * (shift - (len(names) - 1) / 2)
        figure.add_trace(
            go.Scatter(
                x=[step + offset for step, _ in scores],
                y=[score.accuracy for _, score in scores],
                name=name,
                mode="lines+markers",
                line={"color": color, "width": 2},
                marker={"size": 7},
                error_y={
                    "array": [score.high - score.accuracy for _, score in scores],
                    "arrayminus": [score.accuracy - score.low for _, score in scores],
                    "thickness": 1.2,
                    "width": 5,
                },
            ),
            row=1,
            col=1,
        )
    if points:
        figure.update_yaxes(tickformat=".0%", row=1, col=1)
    if has_ptx:
        line(figure, run.metrics.index.tolist(), values_of(run.metrics, "control/ptx_coef"), name="γ", row=len(titles))
        figure.update_traces(line_shape="hv", showlegend=False, selector={"name": "γ"})
        figure.update_yaxes(rangemode="tozero", row=len(titles), col=1)
    figure.update_layout(showlegend=len(names) > 1)
    return iteration_axis(figure, [*run.metrics.index, *(point.step for point in points)], first=0)


def density_figure(histogram: RewardHistogram | None) -> go.Figure | None:
    """How the raw rewards are spread, iteration by iteration: the darker, the more rollouts."""
    if histogram is None:
        return None
    figure = panels(["share of rollouts by raw reward; line: median"], height=330)
    centres = (histogram.edges[:-1] + histogram.edges[1:]) / 2
    figure.add_trace(
        go.Heatmap(
            x=histogram.iterations,
            y=centres,
            z=histogram.share,
            colorscale=[[0, "#ffffff"], [0.15, "#dbe7f3"], [1, ACCENT]],
            zmin=0,
            showscale=True,
            colorbar={"thickness": 10, "tickformat": ".0%", "outlinewidth": 0, "len": 0.9},
            hovertemplate="iteration %{x}<br>reward %{y:.3g}<br>%{z:.1%} of rollouts<extra></extra>",
        )
    )
    line(figure, histogram.iterations, histogram.median, name="median", color=SECOND)
    figure.update_layout(hovermode="closest")
    return iteration_axis(figure, histogram.iterations, first=min(histogram.iterations))


def endings_figure(frame: pd.DataFrame) -> go.Figure | None:
    """How responses end, as shares of the rollouts."""
    shares = {"natural": ACCENT, "early": SECOND, "truncated": "#9aa3ab"}
    shares = {name: color for name, color in shares.items() if f"rollout/{name}_fraction" in frame}
    if not shares:
        return None
    figure = panels(["how responses end"], height=290)
    for name, color in shares.items():
        figure.add_trace(go.Bar(x=frame.index, y=frame[f"rollout/{name}_fraction"], name=name, marker={"color": color}))
    figure.update_layout(barmode="stack", bargap=0.15, showlegend=True)
    figure.update_yaxes(tickformat=".0%", range=[0, 1])
    return iteration_axis(figure, frame.index.tolist())


def panel_figure(frame: pd.DataFrame, panel: Panel) -> go.Figure | None:
    """A small figure of some metrics with their limits; None where none of them was measured."""
    names = {name: label for name, label in panel.metrics.items() if finite_of(frame, name)}
    if not names:
        return None
    figure = panels([panel.title], height=290)
    x = frame.index.tolist()
    for (name, label), color in zip(names.items(), SERIES, strict=False):
        line(figure, x, values_of(frame, name), name=label, color=color)
    measured = [value for name in names for value in finite_of(frame, name)]
    pad_constant(figure, [*measured, *(value for value, _ in panel.limits)])
    for value, label in panel.limits:
        limit(figure, value, label)
    figure.update_layout(showlegend=len(names) > 1)
    return iteration_axis(figure, x)


def _band(figure: go.Figure, frame: pd.DataFrame, low: str, high: str, color: str) -> None:
    if low not in frame or high not in frame:
        return
    x = frame.index.tolist()
    edges: Sequence[tuple[str, str | None]] = ((low, None), (high, "tonexty"))
    for name, fill in edges:
        figure.add_trace(
            go.Scatter(
                x=x,
                y=frame[name],
                name=name.rpartition("_")[2],
                mode="lines",
                line={"width": 0, "color": color},
                fill=fill,
                fillcolor=color,
                hovertemplate="%{y:.3g}",
            ),
            row=1,
            col=1,
        )


def _mark_events(figure: go.Figure, run: RunRecord) -> None:
    """Vertical lines: grey where a gate stood, coloured where something was changed."""
    for gate in run.gates:
        figure.add_vline(x=gate.evaluation.step + 0.5, line={"color": "#b9c0c7", "width": 1, "dash": "dot"})
    for event in run.events:
        if event["kind"] in MARKED_EVENTS and event.get("iteration"):
            figure.add_vline(x=event["iteration"] + 0.5, line={"color": SECOND, "width": 1.5, "dash": "dot"})
