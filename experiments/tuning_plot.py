"""A picture of how fast each way of searching gets near the best configurations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.experiment import Row
from tuner.plots.figure_file import write_figure

HIGHEST = 1.6


def plot_strategies(rows: Sequence[Row], path: Path) -> None:
    """Write a panel per task: median over seeds of the distance from the best, with the middle half of the seeds."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    columns = min(3, len(tasks))
    height = -(-len(tasks) // columns)
    figure = Figure(figsize=(4.8 * columns, 3.8 * height), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(height, columns, squeeze=False).ravel()
    for axes, task in zip(panels, tasks, strict=False):
        for index, row in enumerate(row for row in rows if row["task"] == task):
            trials = range(1, len(row["mean_after"]) + 1)
            low, middle, high = zip(*(after[1:4] for after in row["mean_after"]), strict=True)
            axes.plot(trials, middle, color=f"C{index}", label=row["strategy"])
            axes.fill_between(trials, low, high, color=f"C{index}", alpha=0.15)
        first = next(row for row in rows if row["task"] == task)
        axes.axhline(1.05, color="black", linewidth=0.6, linestyle=":")
        axes.axvline(first["allowed"], color="black", linewidth=0.6, linestyle=":")
        axes.set(title=f"{task}, {first['grid']} points", xlabel="trials", ylim=(0.99, HIGHEST))
        axes.set_xlim(1, min(first["grid"], 4 * first["allowed"]))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("time over the best, mean over sizes")
    panels[0].legend(loc="upper right")
    for axes in panels[len(tasks) :]:
        axes.set_visible(False)
    write_figure(figure, path, "tuning")
