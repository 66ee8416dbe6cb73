"""A picture of `strong-scaling`: how many times as fast, by the number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from chorale.experiments.experiment import Row
from chorale.tuner.plots.charts import write_figure


def plot_speedups(rows: Sequence[Row], path: Path) -> None:
    """Write medians with the range of all rounds; the dashed line is as many times as there are workers."""
    figure = Figure(figsize=(5.6, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task]
        middle = [row["speedup"] for row in own]
        below = [row["speedup"] - row["least"] for row in own]
        above = [row["most"] - row["speedup"] for row in own]
        axes.errorbar([row["workers"] for row in own], middle, (below, above), marker="o", capsize=3, label=task)
    counts = sorted({row["workers"] for row in rows})
    axes.plot(counts, counts, "--", color="black", linewidth=1, label="as many times as workers")
    axes.set_xticks(counts)
    axes.set(title=f"{rows[0]['cores']} cores", xlabel="Ray workers", ylabel="times as fast as one", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    write_figure(figure, path, "speedups")
