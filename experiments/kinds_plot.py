"""A picture of `direct-connect-figure-15`: the shortest allreduce by N, coloured by the kind of topology it is on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from chorale.experiments.experiment import Row
from chorale.tuner.plots.charts import write_figure

_SHOWN = 5
"""Kinds with a colour of their own; the rare ones share one."""
_LEFT_OUT = 0.04
"""Part of the sizes, the smallest, whose short times would flatten all others."""


def plot_kinds(panels: Mapping[str, Sequence[Row]], beside: Mapping[str, str], path: Path) -> None:
    """Write a panel for each title to `path` (.png, .svg or .pdf).

    The rows of a panel have `kind` and `curve` and come by frequency; `beside` gives the colours of those that are
    drawn fine, for comparison.
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
