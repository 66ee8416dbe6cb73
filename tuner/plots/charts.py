"""Charts: goodput, frontiers, training, and the trials of a campaign."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from chorale.runners.api.units import format_size
from chorale.runners.measurement.driver import LinkLimit
from chorale.runners.measurement.precision import MedianInterval
from chorale.synth.finder.find import FinderResult
from chorale.tuner.files.read_write import require_plot_format, write_file
from chorale.tuner.trials.records import CompleteTrial

_NO_DATES: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}


def write_figure(figure: Figure, path: Path, salt: str, dpi: int = 130) -> None:
    """Write `figure` to `path` (.png, .svg or .pdf) without dates; `salt` makes the ids of an SVG repeatable.

    Raises InvalidInput for another extension.
    """
    require_plot_format(path)
    file_format = path.suffix.lower()[1:]
    content = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": salt}):
        figure.savefig(content, format=file_format, dpi=dpi, metadata=_NO_DATES[file_format])
    write_file(path, content.getvalue())


_MARKS = "os^vDP*X"
_PAPER_IN = 5.2, 3.5
"""Width and height of charts: text of 10 points stays readable in a column of a paper, 3.3 inches wide."""
MAX_LABELS = 7

GoodputRows = Sequence[Mapping[str, Any]]
"""Results with `size_bytes` and `goodput_gbit_per_s`."""


def plot_goodput(
    title: str, series: Mapping[str, GoodputRows], path: Path, bound_gbit_per_s: float | None = None
) -> None:
    """Write the goodput of each of `series` (name -> rows) to `path` (.png, .svg or .pdf), with the bound as a line.

    The same rows give the same bytes. Raises InvalidInput for another extension.
    """
    figure = Figure(figsize=_PAPER_IN, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=10, wrap=True)
    if bound_gbit_per_s is not None:
        axes.axhline(bound_gbit_per_s, color="black", linestyle="--", linewidth=1, label="bound: nothing is faster")
    for index, (name, rows) in enumerate(series.items()):
        sizes = [row["size_bytes"] for row in rows]
        goodputs = [row["goodput_gbit_per_s"] for row in rows]
        axes.plot(sizes, goodputs, marker=_MARKS[index % len(_MARKS)], markersize=5, linewidth=1.4, label=name)
    axes.set(xscale="log", yscale="log", xlabel="size of the vector", ylabel="goodput in Gbit/s (size / time)")
    label_sizes(axes, sorted({row["size_bytes"] for rows in series.values() for row in rows}))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    write_figure(figure, path, "goodput")


def label_sizes(axes: Axes, sizes: list[int]) -> None:
    """Label the x axis with some of `sizes` in bytes."""
    stride = -(-len(sizes) // MAX_LABELS)
    shown = sizes[::stride]
    axes.set_xticks(shown, [format_size(size) for size in shown])
    axes.xaxis.set_minor_locator(NullLocator())


_SHADE = "0.88"


def plot_frontier(findings: FinderResult, path: Path) -> None:
    """Write the frontier of `findings` to `path` (.png, .svg or .pdf), the impossible region in grey, and what was
    considered besides.

    The same findings give the same bytes. Raises InvalidInput for another extension.
    """
    figure = Figure(figsize=_PAPER_IN, layout="constrained")
    axes = figure.subplots()
    query = findings.query
    kind = "bidirectional, " if query.bidirectional else ""
    axes.set_title(f"{query.nodes} nodes, {kind}degree {query.degree}: Pareto frontier", fontsize=10)
    steps = [row.candidate.steps for row in findings.frontier]
    factors = [float(row.candidate.bandwidth_factor) for row in findings.frontier]
    others = [(row.steps, float(row.bandwidth_factor)) for row in findings.others]
    if others:
        other_steps, other_factors = zip(*others, strict=True)
        axes.scatter(other_steps, other_factors, color="0.6", s=14, zorder=1, label="considered")
    axes.step(steps, factors, where="post", color="tab:blue", linewidth=1, zorder=2)
    axes.scatter(steps, factors, color="tab:blue", zorder=3, label="found")
    for row, place in zip(findings.frontier, zip(steps, factors, strict=True), strict=True):
        label = f"{row.candidate.method} {row.candidate.spec}"
        axes.annotate(label, place, xytext=(6, 6), textcoords="offset points", fontsize=8)
    # Shade what lies left of the Moore bound and below the bandwidth bound, with room around the points
    least_factor = float(query.least_bandwidth_factor)
    left, right = axes.get_xlim()
    bottom, top = axes.get_ylim()
    width, height = max(right - left, 4), max(top - bottom, 0.2)
    left, right = query.least_steps - 0.15 * width, max(right, query.least_steps) + 0.6 * width
    bottom, top = least_factor - 0.15 * height, max(top, least_factor) + 0.25 * height
    axes.axvspan(left, query.least_steps, color=_SHADE, zorder=0)
    axes.axhspan(bottom, least_factor, color=_SHADE, zorder=0, label="impossible")
    axes.scatter([query.least_steps], [least_factor], marker="*", color="black", s=110, zorder=4, label="both bounds")
    axes.set(xlim=(left, right), ylim=(bottom, top))
    axes.set(xlabel="steps T_L", ylabel="bandwidth time T_B (size / node bandwidth)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="upper right")
    write_figure(figure, path, "frontier")


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


def bandwidth_svg(trials: Sequence[CompleteTrial], limit: LinkLimit | None) -> str:
    """Return algbw over size: for each method the best trial of each size, the baselines, and what links allow."""
    figure, axes = _figure()
    sizes = [size.size_bytes for size in trials[0].sizes]
    for method in sorted({trial.candidate.method for trial in trials}):
        of_method = [trial for trial in trials if trial.candidate.method == method]
        best = [max(trial.sizes[index].algbw_gb_per_s for trial in of_method) for index in range(len(sizes))]
        axes.plot(sizes, best, marker="o", label=method)
    baseline = [
        max(trial.sizes[index].algbw_gb_per_s / trial.sizes[index].speedup for trial in trials)
        for index in range(len(sizes))
    ]
    axes.plot(sizes, baseline, marker="s", linestyle="--", color="grey", label="baseline")
    if limit is not None:
        axes.axhline(1e-9 / limit.seconds_per_byte, linestyle=":", color="black", label="the links allow")
    _size_axis(axes, sizes)
    axes.set(xlabel="size of the vector", ylabel="algbw (GB/s)")
    axes.legend(loc="upper left")
    return _svg(figure, "bandwidth")


Speedups = Mapping[int, MedianInterval]
"""Size in bytes -> speed-up over the fastest baseline, with its interval."""


def speedup_svg(speedups: Speedups) -> str:
    """Return the speed-up of the tuning table at each size, with intervals."""
    figure, axes = _figure()
    sizes = list(speedups)
    medians = [interval.median for interval in speedups.values()]
    below = [max(0.0, interval.median - interval.low) for interval in speedups.values()]
    above = [max(0.0, interval.high - interval.median) for interval in speedups.values()]
    axes.errorbar(sizes, medians, yerr=[below, above], marker="o", capsize=4)
    axes.axhline(1, linestyle="--", color="grey", linewidth=1)
    _size_axis(axes, sizes)
    axes.set(xlabel="size of the vector", ylabel="times faster than the best baseline")
    return _svg(figure, "speedup")


def history_svg(trials: Sequence[CompleteTrial], started_unix_s: float) -> str:
    """Return the speed-up of every trial over the minutes since the launch began, and the best so far."""
    figure, axes = _figure()
    ended = sorted(trials, key=lambda trial: trial.started_unix_s + trial.seconds)
    minutes = [(trial.started_unix_s + trial.seconds - started_unix_s) / 60 for trial in ended]
    speedups = [trial.speedup for trial in ended]
    best = [max(speedups[: index + 1]) for index in range(len(speedups))]
    axes.scatter(minutes, speedups, s=18, label="trial")
    axes.step(minutes, best, where="post", color="tab:green", label="best so far")
    axes.axhline(1, linestyle="--", color="grey", linewidth=1)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="minutes since the launch", ylabel="speed-up, geometric mean over sizes")
    axes.legend(loc="lower right")
    return _svg(figure, "history")


def importance_svg(importances: Mapping[str, float]) -> str:
    """Return how much each parameter mattered, the most important on top."""
    figure, axes = _figure()
    names = list(importances)[::-1]
    axes.barh(names, [importances[name] for name in names])
    axes.set(xlabel="how much it decides whether a trial is among the best", xlim=(0, 1))
    return _svg(figure, "importance")


def _figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.3)
    return figure, axes


def _size_axis(axes: Axes, sizes: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [format_size(size) for size in sizes], rotation=30)
    axes.minorticks_off()
    axes.set_ylim(bottom=0)


def _svg(figure: Figure, salt: str) -> str:
    """Return the SVG element without the XML header; `salt` keeps ids of several pictures in a page distinct."""
    content = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": salt}):
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    text = content.getvalue()
    return text[text.index("<svg") :]
