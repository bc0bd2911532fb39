"""One look for all figures: quiet axes, one accent, iterations on the x axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import plotly.graph_objects as go
from plotly.subplots import make_subplots

ACCENT = "#1d5fa8"
SECOND = "#c4591a"
THIRD = "#5b7f3a"
FOURTH = "#7a5195"
SERIES = (ACCENT, SECOND, THIRD, FOURTH, "#8a8a8a", "#b8901f")
BAND = "rgba(29, 95, 168, 0.14)"
BAND_DARK = "rgba(29, 95, 168, 0.26)"
LIMIT = "#a33a3a"
INK = "#26303a"
GRID = "#e8ebee"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def panels(titles: Sequence[str], *, height: int, row_heights: Sequence[float] | None = None) -> go.Figure:
    """Panels below each other that share the x axis; each title names the quantity and its unit."""
    figure = make_subplots(
        rows=len(titles),
        cols=1,
        shared_xaxes=True,
        subplot_titles=list(titles),
        vertical_spacing=min(0.1, 40 / height) if len(titles) > 1 else 0,
        row_heights=list(row_heights) if row_heights else None,
    )
    for annotation in cast(Any, figure.layout).annotations:
        annotation.update(x=0, xanchor="left", font={"size": 12.5, "color": INK}, yshift=4)
    figure.update_layout(
        height=height,
        template="plotly_white",
        font={"family": FONT, "size": 12, "color": INK},
        margin={"l": 62, "r": 16, "t": 34, "b": 40},
        hovermode="x unified",
        showlegend=False,
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "xanchor": "right", "x": 1, "font": {"size": 11.5}},
        hoverlabel={"font": {"family": FONT, "size": 12}},
    )
    figure.update_xaxes(gridcolor=GRID, zeroline=False, linecolor="#c9ced3")
    figure.update_yaxes(gridcolor=GRID, zeroline=False, automargin=False, nticks=6, exponentformat="e", minexponent=3)
    return figure


def iteration_axis(figure: go.Figure, iterations: Sequence[int], *, first: int = 1) -> go.Figure:
    """Whole numbers on the x axis from `first` to the last iteration, at most a dozen of them labelled."""
    last = max([*iterations, first])
    step = _round_step((last - first + 1) / 12)
    figure.update_xaxes(range=[first - 0.5, last + 0.5], tick0=0 if step > 1 else first, dtick=step)
    rows = len([name for name in figure.layout.to_plotly_json() if name.startswith("xaxis")])
    figure.update_xaxes(title_text="iteration", title_standoff=6, row=rows, col=1)
    return figure


def line(
    figure: go.Figure, x: Sequence[float], y: Sequence[float], *, name: str, color: str = ACCENT, row: int = 1
) -> None:
    """A curve; single points stay visible by their markers."""
    marker = {"size": 5 if len(x) <= 40 else 0.1}
    figure.add_trace(
        go.Scatter(
            x=list(x), y=list(y), name=name, mode="lines+markers", line={"color": color, "width": 2}, marker=marker
        ),
        row=row,
        col=1,
    )


def limit(figure: go.Figure, y: float, label: str, *, row: int = 1) -> None:
    """A labelled horizontal line that a curve should keep to; the axis is widened to show it."""
    xref = "x domain" if row == 1 else f"x{row} domain"
    yref = "y" if row == 1 else f"y{row}"
    figure.add_shape(
        type="line", x0=0, x1=1, xref=xref, y0=y, y1=y, yref=yref, line={"color": LIMIT, "width": 1, "dash": "dash"}
    )
    figure.add_annotation(
        x=1,
        xref=xref,
        xanchor="right",
        y=y,
        yref=yref,
        yanchor="bottom",
        text=label,
        showarrow=False,
        font={"size": 11, "color": LIMIT},
    )
    unseen = go.Scatter(x=[1], y=[y], mode="markers", opacity=0, hoverinfo="skip", showlegend=False)
    figure.add_trace(unseen, row=row, col=1)


def pad_constant(figure: go.Figure, values: Sequence[float]) -> None:
    """Give a curve that does not move an axis of its own size; plotly would take ±1."""
    if values and min(values) == max(values):
        margin = 0.2 * abs(values[0]) or 1.0
        figure.update_yaxes(range=[values[0] - margin, values[0] + margin], row=1, col=1)


def _round_step(least: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50, … that is at least `least`."""
    if least <= 1:
        return 1
    scale = 10 ** math.floor(math.log10(least))
    return int(next(factor * scale for factor in (1, 2, 5, 10) if factor * scale >= least))
