"""A picture of measured and predicted times, program by program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from chorale.experiments.experiment import Row
from chorale.runners.api.units import format_size
from chorale.tuner.plots.charts import write_figure


def plot_predictions(rows: Sequence[Row], path: Path) -> None:
    """Write one panel per program: dots are measured, lines predicted, one colour for each buffer size."""
    programs = list(dict.fromkeys(row["program"] for row in rows))
    figure = Figure(figsize=(4.6 * len(programs), 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(programs), sharey=True, squeeze=False)[0]
    for axes, program in zip(panels, programs, strict=True):
        own = [row for row in rows if row["program"] == program]
        for index, buffer_bytes in enumerate(sorted({row["buffer_bytes"] for row in own})):
            chosen = [row for row in own if row["buffer_bytes"] == buffer_bytes]
            sizes, colour = [row["size_bytes"] for row in chosen], f"C{index}"
            label = f"buffer {format_size(buffer_bytes)}"
            axes.plot(sizes, [row["measured_us"] for row in chosen], "o", color=colour, markersize=5)
            axes.plot(sizes, [row["predicted_us"] for row in chosen], "-", color=colour, label=label)
        axes.set(xscale="log", yscale="log", title=program, xlabel="size of the vector")
        shown = sorted({row["size_bytes"] for row in own})[::2]
        axes.set_xticks(shown, [format_size(size) for size in shown], rotation=45)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("time in us (dots measured, lines predicted)")
    panels[-1].legend(loc="upper left")
    write_figure(figure, path, "mi250")
