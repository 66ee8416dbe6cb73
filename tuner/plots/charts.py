"""Charts: goodput, frontiers, training, and a campaign's trials."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from chorale.runners.api.units import format_size
from chorale.synth.finder.find import FinderResult
from chorale.tuner.files.read_write import require_plot_format, write_file

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
"""Width and height of charts in inches: 10-point text stays readable in a paper's column, 3.3 inches wide."""


def plot_goodput(
    title: str, series: Mapping[str, Sequence[Mapping[str, Any]]], path: Path, bound_gbit_per_s: float | None = None
) -> None:
    """Plot the goodput of each of `series` into `path` (.png, .svg or .pdf), with the bound as a line.

    series: name -> results with `size_bytes` and `goodput_gbit_per_s`

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
    stride = -(-len(sizes) // 7)
    shown = sizes[::stride]
    axes.set_xticks(shown, [format_size(size) for size in shown])
    axes.xaxis.set_minor_locator(NullLocator())


_SHADE = "0.88"


def plot_frontier(findings: FinderResult, path: Path) -> None:
    """Plot the frontier of `findings` and other candidates into `path` (.png, .svg or .pdf); unreachable area in grey.

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
    # Shade the region left of the Moore bound and below the bandwidth bound, with room around the points
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
    ("exposed_allreduce_s", "allreduce that is not hidden", "C3"),
)


def plot_training(panels: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Plot a panel for each title with its rows from `training_row`; the same rows give the same bytes.

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
