"""Timelines of simulated programs."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from chorale.runners.api.units import format_size
from chorale.runners.simulated.program_flows import ProgramTrace
from chorale.synth import NetworkModel, Topology
from chorale.synth.programs.program import AnyProgram
from chorale.tuner.plots.charts import write_figure

MAX_LANES = 150
_BINS = 400
_COLOURS = {True: "#ea580c", False: "#2563eb"}
_MEANING = {True: "receiver adds it", False: "receiver stores it"}


def lanes_of(trace: ProgramTrace) -> NDArray[np.int64]:
    """Return int64[lanes, 2]: rank and number of each thread block that sends, sorted; one lane of the plot each."""
    return np.asarray(np.unique(np.stack([trace.src, trace.block], axis=1), axis=0), dtype=np.int64)


def draw_lanes(axes: Any, trace: ProgramTrace, lanes: NDArray[np.int64]) -> None:
    """Draw the messages in `trace` over time in microseconds, each in its block's lane; `lanes`: see `lanes_of`."""
    most = lanes[:, 1].max(initial=0) + 1
    lane = np.searchsorted(lanes[:, 0] * most + lanes[:, 1], trace.src * most + trace.block)
    for adds, colour in _COLOURS.items():
        rows = np.flatnonzero(trace.adds == adds)
        start, left, low = trace.start_s[rows] * 1e6, trace.left_s[rows] * 1e6, lane[rows] + 0.14
        corners = np.stack([start, low, left, low, left, low + 0.72, start, low + 0.72], axis=1).reshape(-1, 4, 2)
        # Draw all shapes as one object, because each object takes matplotlib milliseconds
        shapes = PolyCollection(list(corners), facecolors=colour, edgecolors="white", linewidths=0.4, zorder=3)
        axes.add_collection(shapes)
    # Distinguish ranks by shade, and lanes by their receivers
    ranks, first, count = np.unique(lanes[:, 0], return_index=True, return_counts=True)
    for index, (top, height) in enumerate(zip(first.tolist(), count.tolist(), strict=True)):
        axes.axhspan(top, top + height, color=("#f1f5f9", "white")[index % 2], zorder=0)
    axes.set_yticks(first + count / 2, [f"rank {rank}" for rank in ranks.tolist()], fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(lanes), 0)
    if len(lanes) <= MAX_LANES // 2:
        _, example = np.unique(lane, return_index=True)
        for row, message in enumerate(example.tolist()):
            target = f"to {trace.dst[message]}"
            axes.annotate(target, (1.005, row + 0.5), xycoords=("axes fraction", "data"), fontsize=6, va="center")
    handles = [Patch(color=_COLOURS[adds], label=_MEANING[adds]) for adds in np.unique(trace.adds).tolist()]
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, fontsize=9)


def _used_bandwidth(
    trace: ProgramTrace, topology: Topology, unit_bytes_per_s: float, chunk_bytes: float
) -> NDArray[np.float64]:
    """Return float64[ranks, bins]: used fraction of outgoing bandwidth if each message is sent at a constant rate."""
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
    """Draw `trace`, the simulation of `program` at `size_bytes`, into `path` (.png, .svg or .pdf).

    The same arguments give the same bytes. Raises InvalidInput for another extension.
    """
    lanes = len(lanes_of(trace))
    height = float(np.clip(0.14 * lanes, 4.5, 14)) if lanes <= MAX_LANES else 6.5
    figure = Figure(figsize=(15, height + 1), layout="constrained")
    time_us = trace.end_s * 1e6
    figure.suptitle(f"{program.name}: {format_size(size_bytes)} in {time_us:.5g} us (flow model)", fontsize=13)
    left, right = figure.subplots(1, 2, width_ratios=(1.6, 1))
    unit = float(network.unit_bytes_per_s(topology))
    left.set_xlim(0, max(time_us, 1e-9))
    left.set_xlabel("us")
    if lanes <= MAX_LANES:  # each sending block has a lane, labelled with its destination
        draw_lanes(left, trace, lanes_of(trace))
    else:  # each rank has a row
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
    """Draw a cell for each pair of linked nodes that shows the busiest of their links."""
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
