"""A picture of a program as the flow model runs it: a timeline of ranks, and a heat map of links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from chorale.runners.api.units import format_size
from chorale.runners.simulated.program_trace import ProgramTrace
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.simulation.network_model import NetworkModel
from chorale.synth.topology.topology import Topology
from chorale.tuner.plots.figure_file import write_figure
from chorale.tuner.plots.timeline import MAX_LANES, draw_timeline, lanes_of

_WRITTEN_NODES = 16
_NAMED_NODES = 40


def plot_program(
    program: AnyProgram, topology: Topology, network: NetworkModel, size_bytes: int, trace: ProgramTrace, path: Path
) -> None:
    """Draw what `trace` says of `program` at `size_bytes` into `path` (.png, .svg or .pdf).

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
