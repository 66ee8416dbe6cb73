"""Pictures of `direct-connect-figure-15`, `finder-frontier` and `frontier-all`: fastest topologies by number of nodes,
and frontiers of steps against bandwidth time beside the printed ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from chorale.experiments.framework.experiment import Row
from chorale.experiments.framework.plots import panel_grid
from chorale.tuner.plots.charts import write_figure

_SHOWN = 5
"""Kinds with a colour of their own; the rare ones share one."""
_LEFT_OUT = 0.04
"""Part of the sizes, the smallest, whose short times would flatten all others."""


def plot_kinds(panels: Mapping[str, Sequence[Row]], beside: Mapping[str, str], path: Path) -> None:
    """Write a panel for each title to `path` (.png, .svg or .pdf).

    The rows of a panel have `kind` and `curve` and are sorted by frequency; `beside` gives the colours of kinds that
    are drawn as fine dots for comparison.
    """
    figure = Figure(figsize=(6.4 * len(panels), 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, rows) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        _draw_kinds(axes, [row for row in rows if row["kind"] not in beside])
        for row in rows:
            if row["kind"] in beside:
                style = {"color": beside[row["kind"]], "linestyle": "", "marker": ".", "markersize": 1.5}
                axes.plot(*zip(*row["curve"], strict=True), **style, label=row["kind"])
        lines = sorted(point[1] for row in rows for point in row["curve"])
        axes.set(title=title, xlabel="N", ylabel="allreduce in us", ylim=(lines[int(_LEFT_OUT * len(lines))], None))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", markerscale=2)
    write_figure(figure, path, "kinds")


def _draw_kinds(axes: Axes, rows: Sequence[Row]) -> None:
    rest = [tuple(point) for row in rows[_SHOWN:] for point in row["curve"]]
    groups = {row["kind"]: row["curve"] for row in rows[:_SHOWN]} | ({"others": rest} if rest else {})
    for name, points in groups.items():
        axes.plot(
            *zip(*points, strict=True),
            marker="o",
            markersize=2.5,
            linestyle="",
            label=f"{name} ({len(points)})",
            zorder=3,
        )


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


_ROOM = 1.03
"""Printed points that are far slower than the fastest are left out of the picture."""


def plot_all_sizes(rows: Sequence[Row], workloads: Sequence[str], path: Path) -> None:
    """Write for each of `workloads` the times over the numbers of nodes, and below what is gained."""
    figure = Figure(figsize=(6.4 * len(workloads), 7), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(workloads), sharex=True, height_ratios=(2, 1), squeeze=False)
    for name, (times, gains) in zip(workloads, panels.T, strict=True):
        points = [point for row in rows if "curves" in row for point in row["curves"][name]]
        printed = [(row["nodes"], row["us"][name]) for row in rows if "us" in row]
        nodes, own, paper, least = zip(*points, strict=True)
        times.plot(nodes, paper, ".", markersize=3, color="tab:orange", label="the paper's bases")
        times.plot(nodes, own, ".", markersize=3, color="tab:blue", label="all bases")
        times.plot(nodes, least, "-", linewidth=1, color="black", label="no network is faster")
        times.plot(*zip(*printed, strict=True), "x", color="tab:red", label="printed points")
        times.set_ylim(min(least) / _ROOM, max(paper) * _ROOM)
        times.grid(alpha=0.3)
        times.legend()
        times.set(title=f"allreduce of {name}", ylabel="us")
        _draw_gains(gains, points)
    write_figure(figure, path, "all-sizes")


def _draw_gains(axes: Axes, points: Sequence[Sequence[float]]) -> None:
    gains = [(nodes, paper / own - 1) for nodes, own, paper, _ in points]
    axes.plot(*zip(*gains, strict=True), ".", markersize=3, color="tab:blue")
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set(xlabel="nodes", ylabel="faster than the paper's bases")
    axes.grid(alpha=0.3)
