"""A drawing of a topology: nodes by kind, links by bandwidth and number, arrows on one-way links."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from chorale.synth.errors import InvalidInput
from chorale.synth.identity import rational_text
from chorale.synth.topology.topology import Topology
from chorale.tuner.files.read_write import require_plot_format
from chorale.tuner.plots.charts import write_figure
from chorale.tuner.plots.layout import Positions, node_positions
from chorale.tuner.plots.network_canvas import (
    ABLE_COLOUR,
    BEHIND_TEXT,
    COMPUTE_COLOUR,
    SWITCH_COLOUR,
    DrawnConnection,
    along,
    arrow_head,
    connections_of,
    curves_of,
    draw_nodes,
)

MAX_DRAWN_LINKS = 50_000

_LINK_COLOURS = ("#8795a8", "#15803d", "#7c3aed", "#db2777", "#0e7490", "#a16207", "#dc2626", "#111827")
_WIDEST_IN, _NARROWEST_IN = 15.0, 3.2


def plot_topology(topology: Topology, path: Path) -> None:
    """Draw `topology` into `path`; its extension chooses the format. The same topology gives the same bytes.

    Raises InvalidInput for another extension, a folder that does not exist, or more than 50,000 links.
    """
    require_plot_format(path)
    if len(topology.links) > MAX_DRAWN_LINKS:
        value = f"{len(topology.links)} in {topology.spec}"
        raise InvalidInput(f"a drawing must have at most {MAX_DRAWN_LINKS} links", value, "draw a smaller network")
    with mpl.rc_context({"font.size": 9}):
        write_figure(_figure(topology), path, topology.id, dpi=150)


def _figure(topology: Topology) -> Figure:
    places = node_positions(topology)
    connections = connections_of(topology)
    curves = curves_of(connections, places)
    spread = np.ptp(np.concatenate([places, *curves]), axis=0) + 1.0
    unit_in = float(np.clip(_WIDEST_IN / spread.max(), 0.05, 0.8))
    width_in, height_in = np.clip(spread * unit_in, _NARROWEST_IN, None)
    title_pt = max(10.0, 1.2 * width_in)
    around_in = (3 * title_pt + 16 * (len(_legend(topology)) // 2)) / 72 + 0.3
    figure = Figure(figsize=(width_in, height_in + around_in), layout="constrained")
    axes = figure.add_subplot()
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set_title(_title(topology), fontsize=title_pt)
    _draw_links(axes, topology, connections, curves, unit_in)
    draw_nodes(axes, topology, places, unit_in)
    _draw_legend(axes, topology)
    return figure


def _title(topology: Topology) -> str:
    spec = topology.spec if len(topology.spec) <= 50 else topology.spec[:47] + "…"
    count = topology.switch_count
    switches = f", {count} switch{'es' if count > 1 else ''}" if count else ""
    return f"{spec}\n{topology.compute_count} nodes{switches}, {len(topology.links)} links"


def _draw_links(
    axes: Any, topology: Topology, connections: list[DrawnConnection], curves: list[Positions], unit_in: float
) -> None:
    colours = _colours(topology)
    thin = float(np.clip(2.0 * unit_in, 0.3, 1.4))
    lines = LineCollection(
        curves,
        colors=[colours[connection.bandwidth] for connection in connections],
        linewidths=[thin * min(connection.count, 5) ** 0.8 for connection in connections],
        zorder=1,
    )
    axes.add_collection(lines, autolim=True)
    one_way = [index for index, connection in enumerate(connections) if connection.one_way]
    heads = [arrow_head(curves[index]) for index in one_way]
    head_colours = [colours[connections[index].bandwidth] for index in one_way]
    axes.add_collection(PolyCollection(heads, facecolors=head_colours, zorder=2), autolim=False)
    if unit_in >= 0.4:
        _draw_counts(axes, connections, curves)


def _draw_counts(axes: Any, connections: list[DrawnConnection], curves: list[Positions]) -> None:
    for connection, curve in zip(connections, curves, strict=True):
        if connection.count > 1:
            label = f"{connection.count}\N{MULTIPLICATION SIGN}"
            axes.text(*along(curve, 0.38), label, ha="center", va="center", fontsize=7, bbox=BEHIND_TEXT, zorder=3)


def _draw_legend(axes: Any, topology: Topology) -> None:
    if entries := _legend(topology):
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "ncols": 2}
        axes.legend(handles=entries, frameon=False, fontsize=8, **place)


def _legend(topology: Topology) -> list[Line2D]:
    entries = []
    if topology.switch_count:
        entries.append(Line2D([], [], marker="o", ls="none", ms=8, color=COMPUTE_COLOUR, label="compute node"))
        entries.append(Line2D([], [], marker="s", ls="none", ms=8, color=SWITCH_COLOUR, label="switch"))
    if topology.abilities:
        label = "switch that multicasts or adds"
        entries.append(Line2D([], [], marker="D", ls="none", ms=7, color=ABLE_COLOUR, label=label))
    colours = _colours(topology)
    if len(colours) > 1 or topology.bandwidth_unit != "link":
        unit = "link capacities" if topology.bandwidth_unit == "link" else topology.bandwidth_unit
        for bandwidth, colour in list(colours.items())[: len(_LINK_COLOURS)]:
            entries.append(Line2D([], [], color=colour, linewidth=2, label=f"{rational_text(bandwidth)} {unit}"))
    return entries


def _colours(topology: Topology) -> dict[Fraction, str]:
    """Return a colour per bandwidth; beyond eight bandwidths the last colour stands for all larger ones."""
    last = len(_LINK_COLOURS) - 1
    return {bandwidth: _LINK_COLOURS[min(index, last)] for index, bandwidth in enumerate(topology.links.bandwidths)}
