"""A picture of iterations of training: a bar per network, cut into what the time is spent on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from chorale.tuner.plots.figure_file import write_figure

_PARTS = (
    ("compute_s", "computation", "C0"),
    ("alltoall_s", "all-to-all", "C1"),
    ("exposed_allreduce_s", "allreduce that nothing hides", "C3"),
)

IterationRows = Sequence[Mapping[str, Any]]


def plot_training(panels: Mapping[str, IterationRows], path: Path) -> None:
    """Write a panel for each title with rows of `training_row`; the same rows give the same bytes.

    Raises InvalidInput for another extension than .png, .svg or .pdf.
    """
    bars = sum(map(len, panels.values()))
    figure = Figure(figsize=(9, 1 + 0.55 * bars + 0.9 * len(panels)), layout="constrained")
    FigureCanvasAgg(figure)
    heights = [len(rows) + 1 for rows in panels.values()]
    all_axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, rows) in zip(all_axes, panels.items(), strict=True):
        names = [f"{row['spec']}\n{row['method']}" for row in rows]
        left = [0.0] * len(rows)
        for key, label, colour in _PARTS:
            widths = [row[key] * 1e3 for row in rows]
            axes.barh(names, widths, left=left, color=colour, label=label, height=0.6)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.set_title(title)
        axes.invert_yaxis()
        axes.grid(alpha=0.3, axis="x")
    all_axes[-1].set_xlabel("an iteration in ms")
    all_axes[0].legend(loc="lower right", fontsize="small")
    write_figure(figure, path, "training")
