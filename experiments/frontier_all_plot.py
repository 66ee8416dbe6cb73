"""A picture of `frontier-all`: the fastest allreduce by number of nodes, as figure 15 has it, and how far ahead."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from chorale.experiments.experiment import Row
from chorale.tuner.plots.charts import write_figure

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
        _draw_times(times, points, printed)
        times.set(title=f"allreduce of {name}", ylabel="us")
        _draw_gains(gains, points)
    write_figure(figure, path, "all-sizes")


def _draw_times(axes: Axes, points: Sequence[Sequence[float]], printed: Sequence[tuple[int, float]]) -> None:
    nodes, own, paper, least = zip(*points, strict=True)
    axes.plot(nodes, paper, ".", markersize=3, color="tab:orange", label="the paper's bases")
    axes.plot(nodes, own, ".", markersize=3, color="tab:blue", label="all bases")
    axes.plot(nodes, least, "-", linewidth=1, color="black", label="no network is faster")
    axes.plot(*zip(*printed, strict=True), "x", color="tab:red", label="printed points")
    axes.set_ylim(min(least) / _ROOM, max(paper) * _ROOM)
    axes.grid(alpha=0.3)
    axes.legend()


def _draw_gains(axes: Axes, points: Sequence[Sequence[float]]) -> None:
    gains = [(nodes, paper / own - 1) for nodes, own, paper, _ in points]
    axes.plot(*zip(*gains, strict=True), ".", markersize=3, color="tab:blue")
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set(xlabel="nodes", ylabel="faster than the paper's bases")
    axes.grid(alpha=0.3)
