"""Figures of panels of one size in rows, and panels of lines or points over logarithmic or linear axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from chorale.tuner.plots.charts import write_figure

Shared = Literal["none", "all"]


def panel_grid(
    count: int, columns: int, panel_inches: tuple[float, float], sharex: Shared = "none", sharey: Shared = "none"
) -> tuple[Figure, list[Axes]]:
    """Return a figure and the axes of `count` panels, `columns` in a row, each `panel_inches` wide and high."""
    lines = -(-count // columns)
    figure = Figure(figsize=(panel_inches[0] * columns, panel_inches[1] * lines), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(lines, columns, squeeze=False, sharex=sharex, sharey=sharey).ravel())
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


_MAX_COLUMNS = 5
"""Panels in a row."""

Scale = Literal["log", "linear", "lines", "flat"]
"""log: lines over logarithmic axes; linear: points over linear axes; lines: the same with lines; flat: lines over a
logarithmic x and a linear y."""

Lines = Mapping[str, Sequence[tuple[float, float]]]
"""Points (x, y) by the name of their line."""


def plot_panels(panels: Mapping[str, Lines], x_label: str, y_label: str, path: Path, scale: Scale = "log") -> None:
    """Write a panel with its lines for each title to `path` (.png, .svg or .pdf). Equal lines give equal bytes."""
    line_style = "" if scale == "linear" else "-"
    x_scale, y_scale = "log" if scale in ("log", "flat") else "linear", "log" if scale == "log" else "linear"
    wide = math.ceil(len(panels) / math.ceil(len(panels) / _MAX_COLUMNS))
    figure, grid = panel_grid(len(panels), wide, (4.4, 3.8))
    for axes, (title, lines) in zip(grid, panels.items(), strict=True):
        for name, points in lines.items():
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, linestyle=line_style, label=name)
        axes.set(xscale=x_scale, yscale=y_scale, title=title, xlabel=x_label, ylabel=y_label)
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left")
    write_figure(figure, path, "lines")
