"""Pictures of lines over logarithmic axes, or of points over linear ones, one panel beside the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tuner.plots.figure_file import write_figure

Lines = Mapping[str, Sequence[tuple[float, float]]]
"""Points (x, y) by the name of their line."""


def plot_panels(
    panels: Mapping[str, Lines], x_label: str, y_label: str, path: Path, scale: Literal["log", "linear"] = "log"
) -> None:
    """Write a panel with its lines for each title to `path` (.png, .svg or .pdf). The same lines, the same bytes."""
    figure = Figure(figsize=(4.4 * len(panels), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for name, points in lines.items():
            line_style = "-" if scale == "log" else ""
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, linestyle=line_style, label=name)
        axes.set(xscale=scale, yscale=scale, title=title, xlabel=x_label, ylabel=y_label)
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left")
    write_figure(figure, path, "lines")
