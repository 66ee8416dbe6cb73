"""Pictures of `forestcoll-figure-9`, a tree over two boxes and how much slower rings are, and of printed and predicted
bandwidths by size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from chorale.experiments.framework.experiment import Row
from chorale.experiments.framework.plots import panel_grid
from chorale.runners.api.units import format_size
from chorale.tuner.plots.charts import write_figure

_WITHIN, _BETWEEN = "tab:blue", "tab:red"
_SIDE = 0.42


def plot_tree_and_rings(
    edges: Sequence[Sequence[int]], gpus: int, over: Sequence[tuple[float, float]], path: Path
) -> None:
    """Draw the tree `edges` on boxes of `gpus` GPUs, and the points (GPUs, ratio) of `over` beside it."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_tree(left, edges, gpus)
    right.plot(*zip(*over, strict=True), marker="o")
    right.set_xscale("log", base=2)
    right.set_xticks([gpus for gpus, _ in over], [f"{gpus:g}" for gpus, _ in over])
    right.set(title="ring over trees", xlabel="GPUs", ylabel="T_B / T_B", ylim=(1, None))
    right.grid(alpha=0.3)
    write_figure(figure, path, "tree-and-rings")


def _draw_tree(axes: Axes, edges: Sequence[Sequence[int]], gpus: int) -> None:
    ranks = sorted({rank for edge in edges for rank in edge})
    for start, end in edges:
        between = start // gpus != end // gpus
        bend = 0 if between else (-_SIDE if (end - start) > 0 else _SIDE)
        shape = {"arrowstyle": "->", "connectionstyle": f"arc3,rad={bend}", "color": _BETWEEN if between else _WITHIN}
        axes.annotate("", _place(end, gpus), _place(start, gpus), arrowprops={**shape, "shrinkA": 9, "shrinkB": 9})
    for rank in ranks:
        axes.scatter(*_place(rank, gpus), s=260, color="white", edgecolors="black", zorder=3)
        axes.text(*_place(rank, gpus), str(rank), ha="center", va="center", fontsize=8, zorder=4)
    handles = [Line2D([], [], color=colour) for colour in (_WITHIN, _BETWEEN)]
    axes.legend(handles, ("NVSwitch", "InfiniBand"), loc="lower right")
    axes.set(title="shard of GPU 0, one tree per root", xlim=(-1, gpus), ylim=(-1.9, 0.9))
    axes.set_axis_off()


def _place(rank: int, gpus: int) -> tuple[float, float]:
    """Return x and y: a line for each box."""
    return rank % gpus, -float(rank // gpus)


_COLUMNS = 3


def plot_bandwidths(panels: Mapping[str, Sequence[Row]], path: Path) -> None:
    """Write a panel for each title: dots are printed, lines predicted, one colour for each generator of schedules."""
    figure, grid = panel_grid(len(panels), _COLUMNS, (4.4, 3.8), sharey="all")
    generators = list(dict.fromkeys(row["generator"] for rows in panels.values() for row in rows))
    for axes, (title, rows) in zip(grid, panels.items(), strict=True):
        axes.set(xscale="log", yscale="log", title=title, xlabel="size of the vector", ylabel="algbw in GB/s")
        _draw(axes, rows, {generator: f"C{index}" for index, generator in enumerate(generators)})
    write_figure(figure, path, "bandwidths")


def _draw(axes: Axes, rows: Sequence[Row], colours: Mapping[str, str]) -> None:
    for generator in dict.fromkeys(row["generator"] for row in rows):
        of_generator = [row for row in rows if row["generator"] == generator]
        sizes, colour = [row["size_bytes"] for row in of_generator], colours[generator]
        axes.plot(sizes, [float(row["printed"]) for row in of_generator], "o", color=colour, label=generator)
        predicted = [row["predicted_gb_per_s"] for row in of_generator]
        if None not in predicted:
            axes.plot(sizes, predicted, "-", color=colour)
    shown = sorted({row["size_bytes"] for row in rows})
    axes.set_xticks(shown, [format_size(size) for size in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.3)
    axes.legend(title="dots printed, lines predicted")
