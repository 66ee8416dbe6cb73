"""A picture of printed and predicted bandwidths by size, one panel for each collective on a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from chorale.experiments.experiment import Row
from chorale.experiments.panel_grid import panel_grid
from chorale.runners.api.units import format_size
from chorale.tuner.plots.charts import write_figure

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
        own = [row for row in rows if row["generator"] == generator]
        sizes, colour = [row["size_bytes"] for row in own], colours[generator]
        axes.plot(sizes, [float(row["printed"]) for row in own], "o", color=colour, label=generator)
        predicted = [row["predicted_gb_per_s"] for row in own]
        if None not in predicted:
            axes.plot(sizes, predicted, "-", color=colour)
    shown = sorted({row["size_bytes"] for row in rows})
    axes.set_xticks(shown, [format_size(size) for size in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.3)
    axes.legend(title="dots printed, lines predicted")
