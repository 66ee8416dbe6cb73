"""Pictures of lines and points over logarithmic or linear axes, a few panels in a row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from chorale.experiments.panel_grid import panel_grid
from chorale.tuner.plots.charts import write_figure

_MOST_BESIDE = 5
"""Panels in a row."""

Scale = Literal["log", "linear", "lines", "flat"]
"""log: lines over logarithmic axes; linear: points over linear axes; lines: the same with lines; flat: lines over a
logarithmic x and a linear y."""

Lines = Mapping[str, Sequence[tuple[float, float]]]
"""Points (x, y) by the name of their line."""


def plot_panels(panels: Mapping[str, Lines], x_label: str, y_label: str, path: Path, scale: Scale = "log") -> None:
    """Write a panel with its lines for each title to `path` (.png, .svg or .pdf). The same lines, the same bytes."""
    line_style = "" if scale == "linear" else "-"
    x_scale, y_scale = "log" if scale in ("log", "flat") else "linear", "log" if scale == "log" else "linear"
    wide = math.ceil(len(panels) / math.ceil(len(panels) / _MOST_BESIDE))
    figure, places = panel_grid(len(panels), wide, (4.4, 3.8))
    for axes, (title, lines) in zip(places, panels.items(), strict=True):
        for name, points in lines.items():
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, linestyle=line_style, label=name)
        axes.set(xscale=x_scale, yscale=y_scale, title=title, xlabel=x_label, ylabel=y_label)
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left")
    write_figure(figure, path, "lines")
