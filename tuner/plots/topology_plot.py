"""A drawing of a topology: nodes by kind, links by bandwidth and number, arrows where there is no way back."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from synth.errors import InvalidInput
from synth.identity import rational_text
from synth.topology.topology import Topology
from tuner.files import write_file
from tuner.plots.connections import Connection, connections_of, curves_of
from tuner.plots.layout import Positions, node_positions

FORMATS = (".png", ".svg", ".pdf")
MAX_DRAWN_LINKS = 50_000

_COMPUTE_COLOUR = "#2b6cb0"
_SWITCH_COLOUR = "#c05621"
_LINK_COLOURS = ("#8795a8", "#15803d", "#7c3aed", "#db2777", "#0e7490", "#a16207", "#dc2626", "#111827")
_WIDEST_IN, _NARROWEST_IN = 15.0, 3.2
_NODE_SHARE = 0.46  # of the distance to the nearest node
_BEHIND_TEXT = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
_NO_DATES: dict[str, dict[str, None]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def require_plot_format(path: Path) -> None:
    """Raise InvalidInput unless the extension of `path` is one that can be drawn."""
    if path.suffix.lower() not in FORMATS:
        raise InvalidInput("a plot must be a .png, .svg or .pdf file", path.name, "choose one of these extensions")


def plot_topology(topology: Topology, path: Path) -> None:
    """Draw `topology` into `path`; its extension chooses the format. The same topology gives the same bytes.

    Raises InvalidInput for another extension, a folder that does not exist, or more than 50,000 links.
    """
    require_plot_format(path)
    if len(topology.links) > MAX_DRAWN_LINKS:
        value = f"{len(topology.links)} in {topology.spec}"
        raise InvalidInput(f"a drawing must have at most {MAX_DRAWN_LINKS} links", value, "draw a smaller network")
    file_format = path.suffix.lower()[1:]
    content = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": topology.id, "font.size": 9}):
        figure = _figure(topology)
        figure.savefig(content, format=file_format, dpi=150, metadata=_NO_DATES[file_format])
    write_file(path, content.getvalue())


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
    _draw_nodes(axes, topology, places, unit_in)
    _draw_legend(axes, topology)
    return figure


def _title(topology: Topology) -> str:
    spec = topology.spec if len(topology.spec) <= 50 else topology.spec[:47] + "…"
    count = topology.switch_count
    switches = f", {count} switch{'es' if count > 1 else ''}" if count else ""
    return f"{spec}\n{topology.compute_count} nodes{switches}, {len(topology.links)} links"


def _draw_links(
    axes: Any, topology: Topology, connections: list[Connection], curves: list[Positions], unit_in: float
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
    heads = [_arrow_head(curves[index]) for index in one_way]
    head_colours = [colours[connections[index].bandwidth] for index in one_way]
    axes.add_collection(PolyCollection(heads, facecolors=head_colours, zorder=2), autolim=False)
    if unit_in >= 0.4:
        _draw_counts(axes, connections, curves)


def _draw_counts(axes: Any, connections: list[Connection], curves: list[Positions]) -> None:
    for connection, curve in zip(connections, curves, strict=True):
        if connection.count > 1:
            label = f"{connection.count}\N{MULTIPLICATION SIGN}"
            axes.text(*_along(curve, 0.38), label, ha="center", va="center", fontsize=7, bbox=_BEHIND_TEXT, zorder=3)


def _draw_nodes(axes: Any, topology: Topology, places: Positions, unit_in: float) -> None:
    diameter_pt = _NODE_SHARE * unit_in * 72
    compute, switches = places[: topology.compute_count], places[topology.compute_count :]
    style = {"s": diameter_pt**2, "linewidths": 0.08 * diameter_pt, "edgecolors": "white", "zorder": 4}
    axes.scatter(*compute.T, color=_COMPUTE_COLOUR, **style)
    axes.scatter(*switches.T, color=_SWITCH_COLOUR, marker="s", **style)
    axes.update_datalim(np.concatenate([places.min(axis=0) - 0.4, places.max(axis=0) + 0.4]).reshape(2, 2))
    axes.autoscale_view()
    if diameter_pt >= 9:
        _draw_names(axes, topology, places, diameter_pt)


def _draw_names(axes: Any, topology: Topology, places: Positions, diameter_pt: float) -> None:
    """Write short names into the nodes, long ones below."""
    for name, (x, y) in zip(topology.node_ids, places, strict=True):
        if len(name) <= 4:
            inside = {"ha": "center", "va": "center_baseline", "color": "white", "in_layout": False, "zorder": 5}
            axes.text(x, y, name, fontsize=min(9.0, diameter_pt * 0.95 / max(2, len(name))), **inside)
        else:
            below = {"ha": "center", "va": "top", "bbox": _BEHIND_TEXT, "zorder": 5}
            axes.text(x, y - 0.66 * _NODE_SHARE, name[:14], fontsize=6.5, **below)


def _draw_legend(axes: Any, topology: Topology) -> None:
    if entries := _legend(topology):
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "ncols": 2}
        axes.legend(handles=entries, frameon=False, fontsize=8, **place)


def _legend(topology: Topology) -> list[Line2D]:
    entries = []
    if topology.switch_count:
        entries.append(Line2D([], [], marker="o", ls="none", ms=8, color=_COMPUTE_COLOUR, label="compute node"))
        entries.append(Line2D([], [], marker="s", ls="none", ms=8, color=_SWITCH_COLOUR, label="switch"))
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


def _along(curve: Positions, share: float) -> Positions:
    """Return the point at `share` of the way along `curve`, whose points are evenly spaced."""
    position = share * (len(curve) - 1)
    before = min(int(position), len(curve) - 2)
    point: Positions = curve[before] + (position - before) * (curve[before + 1] - curve[before])
    return point


def _arrow_head(curve: Positions, length: float = 0.2, width: float = 0.14) -> Positions:
    """Return the triangle of an arrow at two thirds of `curve`."""
    tip = _along(curve, 0.66)
    direction = tip - _along(curve, 0.6)
    direction = direction / np.hypot(*direction)
    side = np.array([-direction[1], direction[0]]) * width / 2
    return np.stack(
        [tip + direction * length / 2, tip - direction * length / 2 + side, tip - direction * length / 2 - side]
    )
