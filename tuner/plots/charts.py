"""Draws charts of goodput, frontiers and training times, and timelines of simulated programs."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from chorale.runners.api.units import format_size
from chorale.runners.simulated.program_flows import ProgramTrace
from chorale.synth import NetworkModel, Topology
from chorale.synth.finder.find import FinderResult
from chorale.synth.programs.program import AnyProgram
from chorale.tuner.files.home import require_plot_format, write_file

_NO_DATES: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}
_MARKS = "os^vDP*X"
_PAPER_IN = 5.2, 3.5
"""Width and height of charts in inches. Shrunk to a paper's column (3.3 inches), their 10-point text stays readable."""
_SHADE = "0.88"
_BINS = 400
_PARTS = (
    ("compute_s", "computation", "C0"),
    ("alltoall_s", "all-to-all", "C1"),
    ("exposed_allreduce_s", "allreduce that is not hidden", "C3"),
)


def write_figure(figure: Figure, path: Path, salt: str, dpi: int = 130) -> None:
    """Write `figure` to `path` (.png, .svg or .pdf) without a date; `salt` makes the ids in an SVG reproducible.

    Raises InvalidInput for another extension.
    """
    require_plot_format(path)
    file_format = path.suffix.lower()[1:]
    content = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": salt}):
        figure.savefig(content, format=file_format, dpi=dpi, metadata=_NO_DATES[file_format])
    write_file(path, content.getvalue())


def plot_goodput(
    title: str, series: Mapping[str, Sequence[Mapping[str, Any]]], path: Path, bound_gbit_per_s: float | None = None
) -> None:
    """Plot the goodput of each of `series`, with the bound as a line, and save the plot to `path` (.png, .svg or .pdf).

    series: name -> results with `size_bytes` and `goodput_gbit_per_s`

    The file is reproducible byte for byte. Raises InvalidInput for another extension.
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


def plot_frontier(findings: FinderResult, path: Path) -> None:
    """Plot the frontier and other candidates in `findings`, with unreachable areas in grey; save the plot to `path`.

    The file is reproducible byte for byte. Raises InvalidInput for another extension.
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


def plot_training(panels: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Plot one panel for each entry of `panels` (title -> results of `training_row`), and save the plot to `path`.

    The file is reproducible byte for byte. Raises InvalidInput unless the extension is .png, .svg or .pdf.
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


def _used_bandwidth(
    trace: ProgramTrace, topology: Topology, unit_bytes_per_s: float, chunk_bytes: float
) -> NDArray[np.float64]:
    """Return the fraction of its outgoing bandwidth that each rank uses over time, as float64[ranks, time bins].

    Each message is assumed to be sent at a constant rate.
    """
    ranks, links = topology.compute_count, topology.links
    bandwidth = np.array([float(value) for value in links.bandwidths])[links.bandwidth_class]
    leaving = (links.src < ranks) & (links.src != links.dst)
    out = np.bincount(links.src[leaving], bandwidth[leaving], minlength=ranks) * unit_bytes_per_s
    edges = np.linspace(0, trace.end_s, _BINS + 1)
    begun, length = trace.start_s, np.maximum(trace.left_s - trace.start_s, 1e-15)
    sent = np.zeros((ranks, _BINS + 1))
    for column, edge in enumerate(edges.tolist()):
        part = np.clip((edge - begun) / length, 0, 1) * trace.chunks * chunk_bytes
        sent[:, column] = np.bincount(trace.src, part, minlength=ranks)
    return np.asarray(np.diff(sent, axis=1) / (out[:, None] * np.diff(edges)), dtype=np.float64)


def plot_program(
    program: AnyProgram, topology: Topology, network: NetworkModel, size_bytes: int, trace: ProgramTrace, path: Path
) -> None:
    """Plot `trace`, the simulation of `program` at `size_bytes`, and save the plot to `path` (.png, .svg or .pdf).

    The file is reproducible byte for byte. Raises InvalidInput for another extension.
    """
    figure = Figure(figsize=(15, 7.5), layout="constrained")
    time_us = trace.end_s * 1e6
    figure.suptitle(f"{program.name}: {format_size(size_bytes)} in {time_us:.5g} us (flow model)", fontsize=13)
    left, right = figure.subplots(1, 2, width_ratios=(1.6, 1))
    unit = float(network.unit_bytes_per_s(topology))
    left.set_xlim(0, max(time_us, 1e-9))
    left.set_xlabel("us")
    used = _used_bandwidth(trace, topology, unit, size_bytes / program.chunks)
    shape = (0, time_us, len(used), 0)
    image = left.imshow(used, aspect="auto", extent=shape, vmin=0, vmax=1, cmap="viridis", interpolation="none")
    ranks = np.arange(0, len(used), -(-len(used) // 32))
    left.set_yticks(ranks + 0.5, [f"rank {rank}" for rank in ranks.tolist()], fontsize=7)
    scale = figure.colorbar(image, ax=left, location="bottom", shrink=0.6, aspect=40)
    scale.set_label("part of a rank's outgoing bandwidth in use")
    links, routes = topology.links, trace.routes
    of_route = np.bincount(trace.route, trace.chunks, minlength=len(routes))
    carried = np.bincount(routes.link_ids, np.repeat(of_route, np.diff(routes.offsets)), minlength=len(links))
    bandwidth = np.array([float(value) for value in links.bandwidths])[links.bandwidth_class] * unit
    _draw_heat(figure, right, topology, carried * size_bytes / program.chunks / bandwidth / trace.end_s)
    write_figure(figure, path, program.origin or program.name)


def _draw_heat(figure: Figure, axes: Any, topology: Topology, busy: NDArray[np.float64]) -> None:
    """Draw a cell for each ordered pair of linked nodes, coloured by the load of the busiest link between them."""
    links, nodes = topology.links, topology.node_count
    cells = np.full((nodes, nodes), np.nan)
    real = links.src != links.dst
    cells[links.src[real], links.dst[real]] = 0.0
    np.maximum.at(cells, (links.src[real], links.dst[real]), busy[real])
    image = axes.imshow(cells, vmin=0, vmax=1, cmap="YlOrRd", interpolation="none")
    axes.set(xlabel="to", ylabel="from")
    axes.set_anchor("N")
    if nodes <= 40:
        turn = 90 if max(map(len, topology.node_ids)) > 2 else 0
        axes.set_xticks(range(nodes), topology.node_ids, rotation=turn, fontsize=7)
        axes.set_yticks(range(nodes), topology.node_ids, fontsize=7)
    if nodes <= 16:
        for src, dst in np.argwhere(~np.isnan(cells)).tolist():
            colour = "white" if cells[src, dst] > 0.6 else "black"
            axes.text(dst, src, f"{cells[src, dst]:.2f}", ha="center", va="center", fontsize=7, color=colour)
    bar = figure.colorbar(image, ax=axes, location="top", shrink=0.6, aspect=30)
    bar.set_label("links: part of the time in use")
