"""Drawing networks: curves of connections, nodes, and a canvas of arcs on which loads and trees are drawn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection, PolyCollection
from numpy.typing import NDArray
from scipy.spatial import KDTree

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology
from chorale.tuner.plots.layout import Positions, node_positions

_CURVE_POINTS = 25
_CLEARANCE = 0.25
_FAN = 0.22


@dataclass(frozen=True, slots=True)
class DrawnConnection:
    """`count` links of one bandwidth between two nodes: from src to dst only if `one_way`, else as many back."""

    src: int
    dst: int
    bandwidth: Fraction
    count: int
    one_way: bool


def connections_of(topology: Topology) -> list[DrawnConnection]:
    """Return what to draw: links there and back become one connection, the rest stays one-way. No self-loops."""
    counts: dict[tuple[int, int, Fraction], int] = defaultdict(int)
    for link in topology.links:
        if link.src != link.dst:
            counts[link.src, link.dst, link.bandwidth] += 1
    connections: list[DrawnConnection] = []
    for (src, dst, bandwidth), count in counts.items():
        back = counts.get((dst, src, bandwidth), 0)
        if src < dst and back:
            connections.append(DrawnConnection(src, dst, bandwidth, min(count, back), one_way=False))
        if count > back:
            connections.append(DrawnConnection(src, dst, bandwidth, count - back, one_way=True))
    return connections


def curves_of(connections: list[DrawnConnection], positions: Positions) -> list[Positions]:
    """Return float64[points, 2] for each connection, from src to dst.

    Straight, but bent around nodes in between and fanned out where one pair has several connections.
    """
    bends = _fanned(connections) + np.where(_blocked(connections, positions), 1.0, 0.0)
    return [_curve(connection, bend, positions) for connection, bend in zip(connections, bends, strict=True)]


def _fanned(connections: list[DrawnConnection]) -> Positions:
    """Return a bend to the left of the line from the lower to the higher node; 0 where a pair has one connection."""
    groups: dict[frozenset[int], list[int]] = defaultdict(list)
    for index, connection in enumerate(connections):
        groups[frozenset((connection.src, connection.dst))].append(index)
    bends = np.zeros(len(connections))
    for members in groups.values():
        bends[members] = 2 * _FAN * (np.arange(len(members)) - (len(members) - 1) / 2)
    return bends


def _blocked(connections: list[DrawnConnection], places: Positions) -> Positions:
    """Return whether a third node stands close to the straight line of each connection."""
    ends = np.array([(connection.src, connection.dst) for connection in connections])
    share = np.linspace(0.05, 0.95, 40)[None, :, None]
    points = places[ends[:, 0]][:, None, :] * (1 - share) + places[ends[:, 1]][:, None, :] * share
    distance, node = KDTree(places).query(points, k=min(3, len(places)))
    third = (node != ends[:, 0][:, None, None]) & (node != ends[:, 1][:, None, None])
    blocked: Positions = np.any(third & (distance < _CLEARANCE), axis=(1, 2))
    return blocked


def _curve(connection: DrawnConnection, bend: float, places: Positions) -> Positions:
    """Return a parabola; `bend` counts in the height that a curve of this length has to clear a row of nodes."""
    start, end = places[connection.src], places[connection.dst]
    if bend == 0:
        return np.stack([start, end])
    along = end - start if connection.src < connection.dst else start - end
    length = float(np.hypot(*along))
    height = bend * min(0.32 + 0.03 * length, 0.4 * length)
    left = np.array([-along[1], along[0]]) / length
    share = np.linspace(0.0, 1.0, _CURVE_POINTS)[:, None]
    curve: Positions = start * (1 - share) + end * share + 4 * share * (1 - share) * height * left
    return curve


def along(curve: Positions, share: float) -> Positions:
    """Return the point at `share` of the way along `curve`, whose points are evenly spaced."""
    position = share * (len(curve) - 1)
    before = min(int(position), len(curve) - 2)
    point: Positions = curve[before] + (position - before) * (curve[before + 1] - curve[before])
    return point


def arrow_head(curve: Positions, length: float = 0.2, width: float = 0.14) -> Positions:
    """Return the triangle of an arrow at two thirds of `curve`."""
    tip = along(curve, 0.66)
    direction = tip - along(curve, 0.6)
    direction = direction / np.hypot(*direction)
    side = np.array([-direction[1], direction[0]]) * width / 2
    return np.stack(
        [tip + direction * length / 2, tip - direction * length / 2 + side, tip - direction * length / 2 - side]
    )


COMPUTE_COLOUR = "#2b6cb0"
SWITCH_COLOUR = "#c05621"
ABLE_COLOUR = "#7b341e"
BEHIND_TEXT = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
_NODE_SHARE = 0.46  # of the distance to the nearest node


def draw_nodes(axes: Any, topology: Topology, positions: Positions, unit_in: float) -> None:
    """Draw compute nodes as discs and switches as squares, with their names where these can be read.

    Switches that multicast or add are diamonds. `unit_in`: inches of a unit of `positions`.
    """
    diameter_pt = _NODE_SHARE * unit_in * 72
    compute, switches = positions[: topology.compute_count], positions[topology.compute_count :]
    style = {"s": diameter_pt**2, "linewidths": 0.08 * diameter_pt, "edgecolors": "white", "zorder": 4}
    axes.scatter(*compute.T, color=COMPUTE_COLOUR, **style)
    able = np.isin(np.arange(topology.compute_count, topology.node_count), list(topology.abilities))
    axes.scatter(*switches[~able].T, color=SWITCH_COLOUR, marker="s", **style)
    if able.any():
        axes.scatter(*switches[able].T, color=ABLE_COLOUR, marker="D", **style)
    axes.update_datalim(np.concatenate([positions.min(axis=0) - 0.4, positions.max(axis=0) + 0.4]).reshape(2, 2))
    axes.autoscale_view()
    if diameter_pt >= 9:
        _draw_names(axes, topology, positions, diameter_pt)


def _draw_names(axes: Any, topology: Topology, places: Positions, diameter_pt: float) -> None:
    """Write short names into the nodes, long ones below."""
    for name, (x, y) in zip(topology.node_ids, places, strict=True):
        if len(name) <= 4:
            inside = {"ha": "center", "va": "center_baseline", "color": "white", "in_layout": False, "zorder": 5}
            axes.text(x, y, name, fontsize=min(9.0, diameter_pt * 0.95 / max(2, len(name))), **inside)
        else:
            below = {"ha": "center", "va": "top", "bbox": BEHIND_TEXT, "zorder": 5}
            axes.text(x, y - 0.66 * _NODE_SHARE, name[:14], fontsize=6.5, **below)


MAX_ARCS = 20_000
IDLE_COLOUR = "0.86"
_WIDEST_IN, _NARROWEST_IN = 7.5, 3.0


@dataclass(frozen=True, slots=True, eq=False)
class NetworkCanvas:
    """A network whose links from one node to another are one arc.

    arc_of_link: int64[links], the arc of each link, -1 for a self-loop
    curves:      float64[points, 2] of each arc, in its direction; arcs there and back lie side by side
    unit_in:     inches of a unit of the positions
    """

    topology: Topology
    positions: Positions
    arc_of_link: NDArray[np.int64]
    curves: list[Positions]
    unit_in: float

    @staticmethod
    def of(topology: Topology) -> NetworkCanvas:
        """Return the canvas of `topology`; InvalidInput for more than `MAX_ARCS` arcs."""
        links = topology.links
        key = links.src.astype(np.int64) * topology.node_count + links.dst
        pairs = np.unique(key[links.src != links.dst])
        if len(pairs) > MAX_ARCS:
            value = f"{len(pairs)} in {topology.spec}"
            raise InvalidInput(f"a drawing must have at most {MAX_ARCS} pairs of linked nodes", value, "draw a part")
        of_link = np.where(links.src == links.dst, -1, np.searchsorted(pairs, key))
        places = node_positions(topology)
        ends = (divmod(pair, topology.node_count) for pair in pairs.tolist())
        arcs = [DrawnConnection(src, dst, Fraction(1), 1, one_way=True) for src, dst in ends]
        curves = curves_of(arcs, places)
        spread = np.ptp(np.concatenate([places, *curves]), axis=0) + 1.0
        return NetworkCanvas(topology, places, of_link, curves, float(np.clip(_WIDEST_IN / spread.max(), 0.05, 0.75)))

    @property
    def size_in(self) -> tuple[float, float]:
        """Width and height of the picture."""
        spread = np.ptp(np.concatenate([self.positions, *self.curves]), axis=0) + 1.0
        width, height = np.clip(spread * self.unit_in, _NARROWEST_IN, None)
        return float(width), float(height)

    def busiest_of_arcs(self, of_links: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return for each arc the largest value of its parallel links."""
        largest = np.zeros(len(self.curves))
        real = self.arc_of_link >= 0
        np.maximum.at(largest, self.arc_of_link[real], of_links[real])
        return largest

    def draw(self, axes: Any, colours: Sequence[Any] | NDArray[Any], used: NDArray[np.bool_]) -> None:
        """Draw all arcs: those in use in their colour with an arrow head, the others thin and grey; then the nodes."""
        axes.set_aspect("equal")
        axes.axis("off")
        wide = float(np.clip(3.2 * self.unit_in, 0.6, 2.4))
        order = np.argsort(used, kind="stable").tolist()
        lines = LineCollection(
            [self.curves[arc] for arc in order],
            colors=[colours[arc] if used[arc] else IDLE_COLOUR for arc in order],
            linewidths=[wide if used[arc] else 0.5 * wide for arc in order],
            zorder=1,
        )
        axes.add_collection(lines, autolim=True)
        busy = np.flatnonzero(used).tolist()
        heads = [arrow_head(self.curves[arc], 0.26, 0.2) for arc in busy]
        axes.add_collection(PolyCollection(heads, facecolors=[colours[arc] for arc in busy], zorder=2), autolim=False)
        draw_nodes(axes, self.topology, self.positions, self.unit_in)
