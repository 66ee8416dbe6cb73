"""A picture of `finder-frontier`: for each number of nodes, our steps against T_B and the printed ones."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from chorale.experiments.experiment import Row
from chorale.experiments.panel_grid import panel_grid
from chorale.tuner.plots.charts import write_figure

_STYLES = {"ours": ("tab:blue", "o"), "paper": ("tab:orange", "x")}


def plot_frontiers(rows: Sequence[Row], path: Path) -> None:
    """Write one panel for each number of nodes to `path` (.png, .svg or .pdf). The same rows give the same bytes."""
    sizes = sorted({row["nodes"] for row in rows})
    figure, panels = panel_grid(len(sizes), min(3, len(sizes)), (4, 3))
    for axes, nodes in zip(panels, sizes, strict=True):
        _draw_frontier(axes, [row for row in rows if row["nodes"] == nodes])
        axes.set(title=f"{nodes} nodes", xlabel="steps T_L", ylabel="T_B in M/B")
    panels[0].legend(loc="upper right")
    write_figure(figure, path, "frontiers")


def _draw_frontier(axes: Axes, rows: Sequence[Row]) -> None:
    for whose, (colour, marker) in _STYLES.items():
        points = [(row["steps"], float(Fraction(row["bandwidth_factor"]))) for row in rows if row["whose"] == whose]
        steps, factors = zip(*points, strict=True)
        axes.step(steps, factors, where="post", color=colour, linewidth=1)
        axes.scatter(steps, factors, color=colour, marker=marker, label=whose, zorder=3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
