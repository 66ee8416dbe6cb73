"""Pictures of goodput and of Swing's gain, as the Swing paper draws them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from chorale.experiments.framework.experiment import Row
from chorale.experiments.swing.curves import OVERHEAD_US
from chorale.runners.api.units import format_size
from chorale.tuner.plots.charts import write_figure

_MARKS = "os^vDP*X"
_DASHED = f"dashed: {float(OVERHEAD_US)} us more per message"


def plot_figure(picture: str, rows: Sequence[Row], path: Path) -> None:
    """Write `rows` (goodput or summary) as a .png, .svg or .pdf; the same rows give the same bytes."""
    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    if picture == "summary":
        _draw_summary(figure, rows)
    else:
        scenes: dict[str, list[Row]] = {}
        for row in rows:
            scenes.setdefault(_label(row), []).append(row)
        if picture == "gain":
            figure.set_size_inches(8.5, 4.8)
            _draw_gains(figure.subplots(), scenes)
        else:
            _draw_goodput(figure, scenes)
    write_figure(figure, path, "swing")


def _label(row: Row) -> str:
    return f"{row['spec']}, {row['link_gbps']} Gbit/s"


def _draw_goodput(figure: Figure, scenes: dict[str, list[Row]]) -> None:
    """Draw goodput above and the gain below, a column for each scene; a large dot where the variant changes."""
    figure.set_size_inches(1.5 + 5 * len(scenes), 7)
    panels = figure.subplots(2, len(scenes), squeeze=False, sharex=True, height_ratios=(2, 1))
    for column, (label, rows) in enumerate(scenes.items()):
        axes = panels[0][column]
        sizes = [row["size_bytes"] for row in rows]
        for index, name in enumerate(rows[0]["goodput_gbit_per_s"]):
            goodputs = [row["goodput_gbit_per_s"][name] for row in rows]
            axes.plot(sizes, goodputs, marker=_MARKS[index], markersize=4, linewidth=1.3, label=name, color=f"C{index}")
            switch = _first_of_another_variant(rows, name)
            axes.plot(sizes[switch], goodputs[switch], marker="o", markersize=9, color=f"C{index}", linestyle="none")
        axes.set(xscale="log", yscale="log", title=label)
        axes.grid(alpha=0.3)
        _draw_gains(panels[1][column], {label: rows})
    panels[0][0].set_ylabel("goodput in Gbit/s (size / time)")
    panels[0][0].legend(loc="upper left")


def _first_of_another_variant(rows: Sequence[Row], name: str) -> slice:
    """Return the place of the first row with another variant of `name` than the row before; empty if there is none."""
    for place, (before, row) in enumerate(pairwise(rows), start=1):
        if row["variant"][name] != before["variant"][name]:
            return slice(place, place + 1)
    return slice(0)


def _draw_gains(axes: Axes, scenes: dict[str, list[Row]]) -> None:
    for index, (label, rows) in enumerate(scenes.items()):
        sizes, colour = [row["size_bytes"] for row in rows], f"C{index}"
        gains, slower = ([row[key] for row in rows] for key in ("gain", "gain_with_overhead"))
        axes.plot(sizes, gains, marker=_MARKS[index], markersize=4, color=colour, linewidth=1.3, label=label)
        axes.plot(sizes, slower, linestyle="--", color=colour, linewidth=1)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(xscale="log", xlabel=f"size of the vector ({_DASHED})", ylabel="gain over the best rival")
    shown = sorted({row["size_bytes"] for rows in scenes.values() for row in rows})[::2]
    axes.set_xticks(shown, [format_size(size) for size in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(alpha=0.3)
    if len(scenes) > 1:
        axes.legend(loc="upper right")


def _draw_summary(figure: Figure, rows: Sequence[Row]) -> None:
    """Draw two boxes for each scene: with the constants of the paper, and with the overhead."""
    figure.set_size_inches(10, 0.5 * len(rows) + 1.5)
    panels = figure.subplots(1, 2, sharey=True, squeeze=False)[0]
    titles = ("as stated", f"with {float(OVERHEAD_US)} us more per message")
    for axes, key, title in zip(panels, ("gains", "gains_with_overhead"), titles, strict=True):
        axes.boxplot([row[key] for row in rows], orientation="horizontal", tick_labels=[_label(row) for row in rows])
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set(title=title, xlabel="gain of Swing over the best rival")
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.grid(alpha=0.3)
    panels[0].invert_yaxis()
