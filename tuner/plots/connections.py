"""What is drawn between two nodes, and along which curve."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.spatial import KDTree

from chorale.synth.topology.topology import Topology
from chorale.tuner.plots.layout import Positions

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

    Straight, but bent around nodes that stand in the way and fanned out where one pair has several connections.
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
