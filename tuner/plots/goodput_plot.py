"""A picture of goodput against the size of the vector, both axes logarithmic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from chorale.runners.api.units import format_size
from chorale.tuner.plots.figure_file import write_figure

_MARKS = "os^vDP*X"
MAX_LABELS = 10

GoodputRows = Sequence[Mapping[str, Any]]
"""Results with `size_bytes` and `goodput_gbit_per_s`."""


def plot_goodput(title: str, series: Mapping[str, GoodputRows], path: Path) -> None:
    """Write the goodput of each of `series` (name -> rows) to `path` (.png, .svg or .pdf).

    The same rows give the same bytes. Raises InvalidInput for another extension.
    """
    write_figure(_figure(title, series), path, "goodput")


def _figure(title: str, series: Mapping[str, GoodputRows]) -> Figure:
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_title(title)
    for index, (name, rows) in enumerate(series.items()):
        sizes = [row["size_bytes"] for row in rows]
        goodputs = [row["goodput_gbit_per_s"] for row in rows]
        axes.plot(sizes, goodputs, marker=_MARKS[index % len(_MARKS)], markersize=5, linewidth=1.4, label=name)
    axes.set(xscale="log", yscale="log", xlabel="size of the vector", ylabel="goodput in Gbit/s (size / time)")
    _label_sizes(axes, sorted({row["size_bytes"] for rows in series.values() for row in rows}))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")
    return figure


def _label_sizes(axes: Axes, sizes: list[int]) -> None:
    stride = -(-len(sizes) // MAX_LABELS)
    shown = sizes[::stride]
    axes.set_xticks(shown, [format_size(size) for size in shown])
    axes.xaxis.set_minor_locator(NullLocator())
