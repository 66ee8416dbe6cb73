"""A picture of how fast each way of searching gets near the best configurations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chorale.experiments.experiment import Row
from chorale.experiments.panel_grid import panel_grid
from chorale.tuner.plots.charts import write_figure

MAX_SHOWN_RATIO = 1.6


def plot_strategies(rows: Sequence[Row], path: Path) -> None:
    """Write a panel per task: median over seeds of the distance from the best, with the middle half of the seeds."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure, panels = panel_grid(len(tasks), min(3, len(tasks)), (4.8, 3.8))
    for axes, task in zip(panels, tasks, strict=True):
        for index, row in enumerate(row for row in rows if row["task"] == task):
            trials = range(1, len(row["mean_after"]) + 1)
            low, middle, high = zip(*(after[1:4] for after in row["mean_after"]), strict=True)
            axes.plot(trials, middle, color=f"C{index}", label=row["strategy"])
            axes.fill_between(trials, low, high, color=f"C{index}", alpha=0.15)
        first = next(row for row in rows if row["task"] == task)
        axes.axhline(1.05, color="black", linewidth=0.6, linestyle=":")
        axes.axvline(first["allowed"], color="black", linewidth=0.6, linestyle=":")
        axes.set(title=f"{task}, {first['grid']} points", xlabel="trials", ylim=(0.99, MAX_SHOWN_RATIO))
        axes.set_xlim(1, min(first["grid"], 4 * first["allowed"]))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("time over the best, mean over sizes")
    panels[0].legend(loc="upper right")
    write_figure(figure, path, "tuning")
