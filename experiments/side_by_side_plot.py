"""A picture of families of algorithms on many networks: how near they come to the bound, and who is fastest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.ticker import NullLocator, PercentFormatter

from chorale.experiments.experiment import Row
from chorale.experiments.panel_grid import panel_grid
from chorale.runners.api.units import format_size
from chorale.tuner.plots.charts import write_figure

_SIDE_BY_SIDE_COLUMNS = 3
_MARKS = "os^v"


def plot_side_by_side(rows: Sequence[Row], families: Sequence[str], path: Path) -> None:
    """Write a panel per network: bound over time of each family, and below a strip in the colour of the fastest."""
    specs = list(dict.fromkeys(row["spec"] for row in rows))
    figure, panels = panel_grid(len(specs), _SIDE_BY_SIDE_COLUMNS, (4.6, 3.2), sharex="all", sharey="all")
    for axes, spec in zip(panels, specs, strict=True):
        own = [row for row in rows if row["spec"] == spec]
        sizes = [row["size_bytes"] for row in own]
        for index, family in enumerate(families):
            if family in own[0]["us"]:
                parts = [row["bound_us"] / row["us"][family] for row in own]
                axes.plot(sizes, parts, marker=_MARKS[index], markersize=4, linewidth=1.3, label=family)
            else:
                axes.plot([], [], marker=_MARKS[index], markersize=4, label=family)
        colours = [f"C{families.index(row['fastest'])}" for row in own]
        axes.scatter(sizes, [-0.07] * len(sizes), marker="s", s=90, c=colours)
        axes.set(xscale="log", title=spec, ylim=(-0.13, 1.05))
        axes.set_xticks(sizes[::3], [format_size(size) for size in sizes[::3]])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.grid(alpha=0.3)
    panels[0].legend(loc="upper left")
    figure.supylabel("least possible time of the bytes / time; squares: the fastest")
    figure.supxlabel("size of the vector")
    write_figure(figure, path, "side-by-side")
