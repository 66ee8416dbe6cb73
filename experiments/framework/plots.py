"""Draws line charts of result rows, with a panel for each title and, in it, a line for each name."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from chorale.experiments.framework.experiment import Row
from chorale.tuner.plots.charts import label_sizes, write_figure

Point: TypeAlias = tuple[str, str, float, float]
"""(title of the point's panel, name of its line, x, y)."""

SIZE = "size of the vector"
"""Label of an x axis in bytes."""

_MAX_COLUMNS = 5
"""Maximum number of panels in a row."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Draws a panel per title, with a line per name, to a .png, .svg or .pdf file. Equal rows give identical files.

    points:  turns rows into points; panels, lines and points are drawn in the order of these points
    log:     letters of the logarithmic axes, such as "xy"
    dots:    whether to draw points without lines between them
    percent: whether y is a fraction, shown in percent
    """

    points: Callable[[Sequence[Row]], Iterable[Point]]
    x_label: str
    y_label: str
    log: str = "xy"
    dots: bool = False
    percent: bool = False

    def __call__(self, rows: Sequence[Row], path: Path) -> None:
        panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for title, name, x, y in self.points(rows):
            panels.setdefault(title, {}).setdefault(name, []).append((x, y))
        figure, grid = panel_grid(len(panels))
        for axes, (title, lines) in zip(grid, panels.items(), strict=True):
            for name, points in lines.items():
                draw_line(axes, points, name, "" if self.dots else "-")
            axes.set(title=title, xlabel=self.x_label, ylabel=self.y_label)
            axes.set(xscale="log" if "x" in self.log else "linear", yscale="log" if "y" in self.log else "linear")
            if self.x_label == SIZE:
                label_sizes(axes, sorted({int(x) for points in lines.values() for x, _ in points}))
            if self.percent:
                axes.yaxis.set_major_formatter(PercentFormatter(1))
            if any(lines):
                axes.legend(fontsize="small")
        write_figure(figure, path, "lines")


def line_points(title: str, name: str, x: str, y: str) -> Callable[[Sequence[Row]], Iterator[Point]]:
    """Return a function that turns each row into a point (row[x], row[y]) and skips rows without a value for `y`.

    title, name: templates for the names of the point's panel and line, such as "{nodes} nodes"
    y:           key of a number, or of a mapping from line names to numbers, which gives a point for each line
    """

    def number(value: float | str) -> float:
        return float(Fraction(value)) if isinstance(value, str) else value

    def points(rows: Sequence[Row]) -> Iterator[Point]:
        for row in (row for row in rows if row.get(y) is not None):
            values = row[y] if isinstance(row[y], Mapping) else {name.format_map(row): row[y]}
            yield from ((title.format_map(row), line, number(row[x]), number(value)) for line, value in values.items())

    return points


def curve_points(title: str, name: str) -> Callable[[Sequence[Row]], Iterator[Point]]:
    """Return a function that yields the points (x, y) listed in row["curve"], for each row that has this key.

    title, name: as in `line_points`
    """
    return lambda rows: (
        (title.format_map(row), name.format_map(row), *point) for row in rows for point in row.get("curve", ())
    )


def all_points(*parts: Callable[[Sequence[Row]], Iterable[Point]]) -> Callable[[Sequence[Row]], Iterable[Point]]:
    """Return a function that yields the points of all `parts`, one part after the other."""
    return lambda rows: chain.from_iterable(part(rows) for part in parts)


def panel_grid(count: int) -> tuple[Figure, list[Axes]]:
    """Return a figure and the axes of `count` panels in rows."""
    lines = math.ceil(count / _MAX_COLUMNS)
    columns = math.ceil(count / lines)
    figure = Figure(figsize=(4.4 * columns, 3.8 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(lines, columns, squeeze=False).ravel())
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


def draw_line(axes: Axes, points: Sequence[tuple[float, float]], name: str = "", style: str = "-") -> None:
    axes.plot(*zip(*points, strict=True), marker="o", markersize=4, linestyle=style, label=name)
    axes.grid(alpha=0.3)
