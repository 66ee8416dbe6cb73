"""Timelines of programs: as a simulation predicts them, and as they were executed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from chorale.runners.api.base import ExecutionTrace
from chorale.runners.api.units import format_size
from chorale.runners.measurement.critical_path import CriticalPath, PathSegment
from chorale.runners.simulated.program_flows import ProgramTrace
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import Op, Program
from chorale.synth.simulation.network_model import NetworkModel
from chorale.synth.topology.topology import Topology
from chorale.tuner.plots.charts import write_figure

MAX_LANES = 150
_BINS = 400
_COLOURS = {True: "#ea580c", False: "#2563eb"}
_MEANING = {True: "receiver adds it", False: "receiver stores it"}
_BAND_COLOURS = ("#f1f5f9", "white")


def lanes_of(trace: ProgramTrace) -> NDArray[np.int64]:
    """Return int64[lanes, 2], sorted: each rank and each of its blocks that sends."""
    return np.asarray(np.unique(np.stack([trace.src, trace.block], axis=1), axis=0), dtype=np.int64)


def draw_timeline(
    axes: Any, trace: ProgramTrace, topology: Topology, unit_bytes_per_s: float, chunk_bytes: float
) -> str:
    """Draw the messages of `trace` over microseconds; return the label of the colour scale, empty if none is needed.

    Up to `MAX_LANES` sending blocks each get a lane, labelled with where they send; else each rank gets one row.
    `unit_bytes_per_s`: of bandwidth 1.
    """
    axes.set_xlim(0, max(trace.end_s * 1e6, 1e-9))
    axes.set_xlabel("us")
    axes.spines[["top", "right"]].set_visible(False)
    lanes = lanes_of(trace)
    if len(lanes) <= MAX_LANES:
        draw_lanes(axes, trace, lanes)
        return ""
    _draw_rows(axes, trace, topology, unit_bytes_per_s, chunk_bytes)
    return "part of a rank's outgoing bandwidth in use"


def draw_lanes(axes: Any, trace: ProgramTrace, lanes: NDArray[np.int64]) -> None:
    """Draw the messages of `trace` over microseconds, each in the lane of its block; `lanes` as of `lanes_of`."""
    key = lanes[:, 0] * (lanes[:, 1].max(initial=0) + 1) + lanes[:, 1]
    lane = np.searchsorted(key, trace.src * (lanes[:, 1].max(initial=0) + 1) + trace.block)
    for adds, colour in _COLOURS.items():
        rows = np.flatnonzero(trace.adds == adds)
        low, start, left = lane[rows] + 0.14, trace.start_s[rows] * 1e6, trace.left_s[rows] * 1e6
        corners = np.stack([start, low, left, low, left, low + 0.72, start, low + 0.72], axis=1).reshape(-1, 4, 2)
        axes.add_collection(
            PolyCollection(list(corners), facecolors=colour, edgecolors="white", linewidths=0.4, zorder=3)
        )
    _draw_bands(axes, trace, lanes, lane)
    kinds = np.unique(trace.adds).tolist()
    handles = [Patch(color=_COLOURS[adds], label=_MEANING[adds]) for adds in kinds]
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, fontsize=9)


def _draw_bands(axes: Any, trace: ProgramTrace, lanes: NDArray[np.int64], lane: NDArray[np.int64]) -> None:
    """Tell ranks apart by shade, and lanes by whom they send to."""
    ranks, first, count = np.unique(lanes[:, 0], return_index=True, return_counts=True)
    for index, (top, height) in enumerate(zip(first.tolist(), count.tolist(), strict=True)):
        axes.axhspan(top, top + height, color=_BAND_COLOURS[index % 2], zorder=0)
    axes.set_yticks(first + count / 2, [f"rank {rank}" for rank in ranks.tolist()], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(lanes), 0)
    if len(lanes) <= MAX_LANES // 2:
        _, example = np.unique(lane, return_index=True)
        for row, message in enumerate(example.tolist()):
            target = f"to {trace.dst[message]}"
            axes.annotate(target, (1.005, row + 0.5), xycoords=("axes fraction", "data"), fontsize=6, va="center")


def _draw_rows(axes: Any, trace: ProgramTrace, topology: Topology, unit_bytes_per_s: float, chunk_bytes: float) -> None:
    used = _used_bandwidth(trace, topology, unit_bytes_per_s, chunk_bytes)
    shape = (0, trace.end_s * 1e6, len(used), 0)
    axes.imshow(used, aspect="auto", extent=shape, vmin=0, vmax=1, cmap="viridis", interpolation="none")
    stride = -(-len(used) // 32)
    ranks = np.arange(0, len(used), stride)
    axes.set_yticks(ranks + 0.5, [f"rank {rank}" for rank in ranks.tolist()], fontsize=7)


def _used_bandwidth(
    trace: ProgramTrace, topology: Topology, unit_bytes_per_s: float, chunk_bytes: float
) -> NDArray[np.float64]:
    """Return float64[ranks, bins]: bytes that leave over bytes that could; messages are taken to leave evenly."""
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


_WRITTEN_NODES = 16
_NAMED_NODES = 40


def plot_program(
    program: AnyProgram, topology: Topology, network: NetworkModel, size_bytes: int, trace: ProgramTrace, path: Path
) -> None:
    """Draw `trace`, the simulation of `program` at `size_bytes`, into `path` (.png, .svg or .pdf).

    The same arguments give the same bytes. Raises InvalidInput for another extension.
    """
    lanes = len(lanes_of(trace))
    height = float(np.clip(0.14 * lanes, 4.5, 14)) if lanes <= MAX_LANES else 6.5
    figure = Figure(figsize=(15, height + 1), layout="constrained")
    FigureCanvasAgg(figure)
    time_us = trace.end_s * 1e6
    figure.suptitle(f"{program.name}: {format_size(size_bytes)} in {time_us:.5g} us (flow model)", fontsize=13)
    left, right = figure.subplots(1, 2, width_ratios=(1.6, 1))
    unit = float(network.unit_bytes_per_s(topology))
    scale = draw_timeline(left, trace, topology, unit, size_bytes / program.chunks)
    if scale:
        figure.colorbar(left.images[0], ax=left, location="bottom", shrink=0.6, aspect=40).set_label(scale)
    _draw_heat(figure, right, topology, _busy_parts(program, topology, unit, size_bytes, trace))
    write_figure(figure, path, program.origin or program.name)


def _busy_parts(
    program: AnyProgram, topology: Topology, unit_bytes_per_s: float, size_bytes: int, trace: ProgramTrace
) -> NDArray[np.float64]:
    """Return float64[links]: the part of the time for which each link carries as much as it can."""
    links, routes = topology.links, trace.routes
    of_route = np.bincount(trace.route, trace.chunks, minlength=len(routes))
    carried = np.bincount(routes.link_ids, np.repeat(of_route, np.diff(routes.offsets)), minlength=len(links))
    bandwidth = np.array([float(value) for value in links.bandwidths])[links.bandwidth_class] * unit_bytes_per_s
    return np.asarray(carried * size_bytes / program.chunks / bandwidth / trace.end_s, dtype=np.float64)


def _draw_heat(figure: Figure, axes: Any, topology: Topology, busy: NDArray[np.float64]) -> None:
    """Draw a cell for each pair of linked nodes: the busiest of their links."""
    links, nodes = topology.links, topology.node_count
    cells = np.full((nodes, nodes), np.nan)
    real = links.src != links.dst
    cells[links.src[real], links.dst[real]] = 0.0
    np.maximum.at(cells, (links.src[real], links.dst[real]), busy[real])
    image = axes.imshow(cells, vmin=0, vmax=1, cmap="YlOrRd", interpolation="none")
    axes.set(xlabel="to", ylabel="from")
    axes.set_anchor("N")
    if nodes <= _NAMED_NODES:
        turn = 90 if max(map(len, topology.node_ids)) > 2 else 0
        axes.set_xticks(range(nodes), topology.node_ids, rotation=turn, fontsize=7)
        axes.set_yticks(range(nodes), topology.node_ids, fontsize=7)
    if nodes <= _WRITTEN_NODES:
        for src, dst in np.argwhere(~np.isnan(cells)).tolist():
            colour = "white" if cells[src, dst] > 0.6 else "black"
            axes.text(dst, src, f"{cells[src, dst]:.2f}", ha="center", va="center", fontsize=7, color=colour)
    bar = figure.colorbar(image, ax=axes, location="top", shrink=0.6, aspect=30)
    bar.set_label("links: part of the time in use")


_CAUSE_COLOURS = {
    "sends": "#2563eb",
    "receives": "#16a34a",
    "works on memory": "#9333ea",
    "waits for its first byte": "#cbd5e1",
}
_CRITICAL = "#dc2626"


def plot_execution(program: Program, measured: ExecutionTrace, predicted: ProgramTrace | None, path: Path) -> None:
    """Draw `measured` above `predicted`, if there is any, into `path` (.png, .svg or .pdf), on one axis of time.

    Each block of each rank has a lane; a red line is the critical path. The same arguments give the same bytes.
    Raises InvalidInput for another extension.
    """
    lanes = [(rank, block) for rank, part in enumerate(program.ranks) for block in range(len(part.blocks))]
    panels = 1 if predicted is None else 2
    figure = Figure(figsize=(14, panels * float(np.clip(0.09 * len(lanes), 3.5, 12)) + 1.5), layout="constrained")
    FigureCanvasAgg(figure)
    above, *below = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
    _draw_measured(above, program, measured, {lane: row for row, lane in enumerate(lanes)})
    above.set_title(f"measured: {measured.time_s * 1e6:.5g} us", loc="left")
    for axes in below:
        assert predicted is not None
        draw_lanes(axes, predicted, lanes_of(predicted))
        axes.set_title(f"predicted, links alone: {predicted.end_s * 1e6:.5g} us", loc="left")
    (above, *below)[-1].set_xlabel("us")
    above.set_xlim(0, max(measured.time_s, 0.0 if predicted is None else predicted.end_s) * 1e6)
    figure.suptitle(f"{program.name}: {format_size(measured.size_bytes)}", fontsize=13)
    write_figure(figure, path, program.origin or program.name)


def _draw_measured(axes: Any, program: Program, trace: ExecutionTrace, lanes: dict[tuple[int, int], int]) -> None:
    boxes: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in _CAUSE_COLOURS}
    for name, lane, begin_s, end_s in _boxes(program, trace):
        low, left, right = lanes[lane] + 0.14, begin_s * 1e6, end_s * 1e6
        boxes[name].append([(left, low), (right, low), (right, low + 0.72), (left, low + 0.72)])
    for name, corners in boxes.items():
        axes.add_collection(PolyCollection(corners, facecolors=_CAUSE_COLOURS[name], linewidths=0, zorder=3))
    for one in CriticalPath(program, trace).segments():
        _draw_segment(axes, one, lanes)
    handles = [Patch(color=colour, label=name) for name, colour in _CAUSE_COLOURS.items()]
    handles.append(Patch(color=_CRITICAL, label="critical path"))
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.06), ncols=5, frameon=False, fontsize=9)
    first = {rank: min(row for (one, _), row in lanes.items() if one == rank) for rank, _ in lanes}
    axes.set_yticks(list(first.values()), [f"rank {rank}" for rank in first], fontsize=8)
    axes.set_ylim(len(lanes), 0)
    axes.spines[["top", "right"]].set_visible(False)


def _boxes(program: Program, trace: ExecutionTrace) -> Iterator[tuple[str, tuple[int, int], float, float]]:
    """Yield (what, lane, begin, end) of what each block did."""
    for rank, rank_trace in enumerate(trace.ranks):
        for span in rank_trace.steps:
            moved_s = max(span.start_s or span.ready_s, span.ready_s)
            yield "waits for its first byte", (rank, span.block), span.ready_s, moved_s
            op = program.ranks[rank].blocks[span.block].instructions[span.step].op
            yield _kind(op), (rank, span.block), moved_s, span.end_s


def _kind(op: Op) -> str:
    if op.receives:
        return "receives"
    return "sends" if op.sends else "works on memory"


def _draw_segment(axes: Any, one: PathSegment, lanes: dict[tuple[int, int], int]) -> None:
    row = lanes[one.rank, one.block] + 0.5
    axes.plot([one.begin_s * 1e6, one.end_s * 1e6], [row, row], color=_CRITICAL, linewidth=1.2, zorder=4)
