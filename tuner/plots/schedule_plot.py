"""A picture of a schedule on its network: how busy links are, each step, and the paths of data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from chorale.synth.schedule.schedule import Schedule
from chorale.synth.schedule.traffic import DataPath, data_paths, traffic_of
from chorale.tuner.plots.charts import write_figure
from chorale.tuner.plots.network_canvas import NetworkCanvas

MAX_PATHS = 7
_SHAPE = 1.5  # width over height of a picture that fits a screen
_AROUND_IN = 0.5  # title of a panel
_LOAD_COLOURS = "plasma_r"
_STEP_COLOURS = ("#1d4ed8", "#c026d3", "#ea580c", "#16a34a", "#0891b2", "#a16207", "#dc2626", "#4b5563")


def plot_schedule(schedule: Schedule, rank: int, path: Path) -> None:
    """Draw `schedule` into `path` (.png, .svg or .pdf): the load of every link, the steps, and the paths of the data
    of `rank`.

    The same schedule gives the same bytes. Raises InvalidInput for another extension or too large a network.
    """
    canvas, busy, paths = NetworkCanvas.of(schedule.topology), _busy(schedule), data_paths(schedule, rank)
    shown = paths[:MAX_PATHS]
    has_steps = schedule.kind == "stepped" and len(busy) > 1
    count = 1 + has_steps + len(shown)
    width, height = canvas.size_in
    columns = _columns(count, width, height + _AROUND_IN)
    rows = -(-count // columns)
    figure = Figure(figsize=(columns * width, rows * (height + _AROUND_IN) + 1.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{schedule.collective.name.value} {schedule.method} on {schedule.topology.spec}", fontsize=13)
    all_axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in all_axes[count:]:
        axes.axis("off")
    _draw_loads(all_axes[0], canvas, busy.sum(axis=0))
    if has_steps:
        _draw_steps(all_axes[1], busy)
    for axes, data_path, title in zip(all_axes[1 + has_steps :], shown, _titles(schedule, paths, rank), strict=False):
        _draw_path(axes, canvas, schedule, data_path, title)
    _explain(figure, all_axes.tolist(), schedule, shown)
    write_figure(figure, path, schedule.id)


def _columns(panels: int, width: float, height: float) -> int:
    """Return into how many columns to put the panels, so that the picture has about the shape of a screen."""

    def distance(columns: int) -> float:
        shape = columns * width / (-(-panels // columns) * height)
        return abs(float(np.log(shape / _SHAPE)))

    return min(range(1, panels + 1), key=distance)


def _busy(schedule: Schedule) -> NDArray[np.float64]:
    """Return float64[steps, links]: for how long each link is busy, per byte of the vector."""
    traffic, links = traffic_of(schedule), schedule.topology.links
    bandwidth = np.array([float(value) for value in links.bandwidths])[links.bandwidth_class]
    amounts = np.array([traffic.link_amounts(step) for step in traffic.steps]).reshape(-1, len(links))
    return np.asarray(amounts / (bandwidth * traffic.denominator), dtype=np.float64)


def _draw_loads(axes: Any, canvas: NetworkCanvas, busy: NDArray[np.float64]) -> None:
    part = busy / max(float(busy.max(initial=0.0)), 1e-300)
    idle = int((part == 0).sum())
    least = float(part[part > 0].min(initial=1.0))
    evenness = (
        "all links equally loaded" if least > 1 - 1e-9 else f"links: the least loaded has {least:.0%} of the most"
    )
    axes.set_title(f"{evenness}{f', {idle} of {len(part)} idle' if idle else ''}", fontsize=10)
    of_arcs = canvas.busiest_of_arcs(part)
    canvas.draw(axes, mpl.colormaps[_LOAD_COLOURS](0.1 + 0.9 * of_arcs), of_arcs > 0)


def _draw_steps(axes: Any, busy: NDArray[np.float64]) -> None:
    """Draw how much of the bandwidth time each step takes, and how busy links are in it on average."""
    steps, whole = np.arange(1, len(busy) + 1), busy.max(axis=1).sum()
    axes.bar(steps, busy.max(axis=1) / whole, width=0.75, color="#c7d2fe", label="busiest link")
    axes.bar(steps, busy.mean(axis=1) / whole, width=0.4, color="#3730a3", label="mean of all links")
    axes.set_title("share of each step in the bandwidth time", fontsize=10)
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(y=0.25)
    axes.legend(frameon=False, fontsize=9, loc="upper right", ncols=2)


def _titles(schedule: Schedule, paths: Sequence[DataPath], rank: int) -> Iterator[str]:
    whose = schedule.collective.root if schedule.collective.is_rooted else rank
    for number, data_path in enumerate(paths, 1):
        what = f"sums for rank {whose}" if data_path.reduces else f"data of rank {whose}"
        if schedule.kind == "stepped":
            yield f"{what}, by step"
        else:
            yield f"tree {number} of {len(paths)}: {'all' if data_path.share == 1 else data_path.share} of the {what}"


def _draw_path(axes: Any, canvas: NetworkCanvas, schedule: Schedule, data_path: DataPath, title: str) -> None:
    axes.set_title(title, fontsize=10)
    step = np.full(len(canvas.curves), -1)
    for edge, route in zip(data_path.step.tolist()[::-1], data_path.route.tolist()[::-1], strict=True):
        step[canvas.arc_of_link[schedule.routes.path(route)]] = edge
    canvas.draw(axes, [_colour(depth) for depth in step.tolist()], step >= 0)


def _colour(step: int) -> str:
    return _STEP_COLOURS[step % len(_STEP_COLOURS)]


def _explain(figure: Figure, all_axes: Sequence[Any], schedule: Schedule, paths: Sequence[DataPath]) -> None:
    """Add a legend of the colours of steps and a colour bar for loads."""
    scale = ScalarMappable(Normalize(-1 / 9, 1), mpl.colormaps[_LOAD_COLOURS])
    bar = figure.colorbar(scale, ax=all_axes, location="bottom", shrink=0.5, aspect=40, pad=0.02)
    bar.ax.set_xlim(0, 1)
    bar.set_label("time for which a link is busy, as a part of that of the busiest", fontsize=9)
    used = np.unique(np.concatenate([np.zeros(0, np.int64), *(data_path.step for data_path in paths)])).tolist()
    word = "step" if schedule.kind == "stepped" else "depth"
    lines = [Line2D([], [], color=_colour(step), lw=2, label=f"{word} {step + 1}") for step in used]
    figure.legend(handles=lines[: 2 * len(_STEP_COLOURS)], loc="outside lower center", ncols=8, frameon=False)
