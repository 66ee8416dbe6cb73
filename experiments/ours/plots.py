"""Pictures of our own experiments: live sweeps, MI250 predictions, families side by side, strong scaling, and tuning
strategies.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from chorale.experiments.framework.experiment import Row
from chorale.experiments.framework.plots import panel_grid
from chorale.runners.api.units import format_size
from chorale.tuner.plots.charts import write_figure

_SWEEP_COLUMNS = 3


def plot_sweeps(rows: Sequence[Row], path: Path) -> None:
    """Write the times over that of the first value, with what the links alone would take as a dashed line."""
    sweeps = list(dict.fromkeys((row["method"], row["parameter"]) for row in rows))
    figure, grid = panel_grid(len(sweeps), _SWEEP_COLUMNS, (4.2, 3.4), sharey="all")
    for axes, (method, parameter) in zip(grid, sweeps, strict=True):
        _draw_sweep(axes, [row for row in rows if (row["method"], row["parameter"]) == (method, parameter)])
        axes.set(title=method, xlabel=parameter, ylabel="time over the first")
    grid[0].legend()
    write_figure(figure, path, "sweeps")


def _draw_sweep(axes: Axes, rows: Sequence[Row]) -> None:
    axes.set_xscale("log", base=2)
    for size_bytes in dict.fromkeys(row["size_bytes"] for row in rows):
        points = [(row["value"], row["over_first"]) for row in rows if row["size_bytes"] == size_bytes]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=format_size(size_bytes))
    theory = sorted({(row["value"], row["over_first_in_theory"]) for row in rows})
    axes.plot(*zip(*theory, strict=True), "--", color="black", linewidth=1, label="links alone")
    values = [value for value, _ in theory]
    axes.set_xticks(values, list(map(str, values)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.3)


def plot_efficiency(rows: Sequence[Row], path: Path) -> None:
    """Write a panel for each network and rate: what part of what links allow each runner reaches, over sizes."""
    panels = list(dict.fromkeys((row["spec"], row["link_mbps"]) for row in rows))
    figure, grid = panel_grid(len(panels), _SWEEP_COLUMNS, (4.2, 3.4), sharey="all")
    for axes, (spec, rate) in zip(grid, panels, strict=True):
        chosen = [row for row in rows if (row["spec"], row["link_mbps"]) == (spec, rate)]
        for runner in dict.fromkeys(row["runner"] for row in chosen):
            points = [(row["size_bytes"], row["efficiency"]) for row in chosen if row["runner"] == runner]
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=runner)
        axes.set_xscale("log", base=2)
        axes.set(title=f"{spec}, {rate} Mbit/s", xlabel="bytes", ylabel="of what links allow", ylim=(0, 1.05))
        axes.grid(alpha=0.3)
    grid[0].legend()
    write_figure(figure, path, "efficiency")


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


_SIDE_BY_SIDE_COLUMNS = 3
_MARKS = "os^v"


def plot_side_by_side(rows: Sequence[Row], families: Sequence[str], path: Path) -> None:
    """Write a panel per network: bound over time of each family, and below a strip in the colour of the fastest."""
    specs = list(dict.fromkeys(row["spec"] for row in rows))
    figure, panels = panel_grid(len(specs), _SIDE_BY_SIDE_COLUMNS, (4.6, 3.2), sharex="all", sharey="all")
    for axes, spec in zip(panels, specs, strict=True):
        own = [row for row in rows if row["spec"] == spec]
        sizes = [row["size_bytes"] for row in own]
        for index, family in enumerate(families):
            if family in own[0]["us"]:
                parts = [row["bound_us"] / row["us"][family] for row in own]
                axes.plot(sizes, parts, marker=_MARKS[index], markersize=4, linewidth=1.3, label=family)
            else:
                axes.plot([], [], marker=_MARKS[index], markersize=4, label=family)
        colours = [f"C{families.index(row['fastest'])}" for row in own]
        axes.scatter(sizes, [-0.07] * len(sizes), marker="s", s=90, c=colours)
        axes.set(xscale="log", title=spec, ylim=(-0.13, 1.05))
        axes.set_xticks(sizes[::3], [format_size(size) for size in sizes[::3]])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.grid(alpha=0.3)
    panels[0].legend(loc="upper left")
    figure.supylabel("least possible time of the bytes / time; squares: the fastest")
    figure.supxlabel("size of the vector")
    write_figure(figure, path, "side-by-side")


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
