"""A figure of panels of one size, row by row; places that are left over stay empty."""

from __future__ import annotations

from typing import Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

Shared = Literal["none", "all"]


def panel_grid(
    count: int, columns: int, panel_inches: tuple[float, float], sharex: Shared = "none", sharey: Shared = "none"
) -> tuple[Figure, list[Axes]]:
    """Return a figure and the axes of `count` panels, `columns` in a row, each `panel_inches` wide and high."""
    lines = -(-count // columns)
    figure = Figure(figsize=(panel_inches[0] * columns, panel_inches[1] * lines), layout="constrained")
    FigureCanvasAgg(figure)
    places = list(figure.subplots(lines, columns, squeeze=False, sharex=sharex, sharey=sharey).ravel())
    for axes in places[count:]:
        axes.set_visible(False)
    return figure, places[:count]
