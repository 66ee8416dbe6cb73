"""A picture of `channels-live`: a panel for each parameter of each method, a line for each size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from chorale.experiments.experiment import Row
from chorale.experiments.panel_grid import panel_grid
from chorale.runners.api.units import format_size
from chorale.tuner.plots.charts import write_figure

_SWEEP_COLUMNS = 3


def plot_sweeps(rows: Sequence[Row], path: Path) -> None:
    """Write the times over that of the first value, with what the links alone would take as a dashed line."""
    sweeps = list(dict.fromkeys((row["method"], row["parameter"]) for row in rows))
    figure, grid = panel_grid(len(sweeps), _SWEEP_COLUMNS, (4.2, 3.4), sharey="all")
    for axes, (method, parameter) in zip(grid, sweeps, strict=True):
        _draw_sweep(axes, [row for row in rows if (row["method"], row["parameter"]) == (method, parameter)])
        axes.set(title=method, xlabel=parameter, ylabel="time over the first")
    grid[0].legend()
    write_figure(figure, path, "sweeps")


def _draw_sweep(axes: Axes, rows: Sequence[Row]) -> None:
    axes.set_xscale("log", base=2)
    for size_bytes in dict.fromkeys(row["size_bytes"] for row in rows):
        points = [(row["value"], row["over_first"]) for row in rows if row["size_bytes"] == size_bytes]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=format_size(size_bytes))
    theory = sorted({(row["value"], row["over_first_in_theory"]) for row in rows})
    axes.plot(*zip(*theory, strict=True), "--", color="black", linewidth=1, label="links alone")
    values = [value for value, _ in theory]
    axes.set_xticks(values, list(map(str, values)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.3)
