"""Where the nodes of a switched network are drawn: in rows by level, or routers on a circle."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from scipy.sparse import csr_array

from chorale.synth.topology.topology import Topology

SwitchedPositions = NDArray[np.float64]

_GROUP_GAP = 0.7
_ROW_SHARE = 0.5  # of the widest row, for a row of few switches
_LOWEST_ROW, _ROW_HEIGHT = 2.0, 0.16  # of the widest row
_FAN = 1.2


def switched_positions(topology: Topology) -> SwitchedPositions | None:
    """Return float64[nodes, 2] for a network in which compute nodes are linked with switches only, else None.

    Compute nodes stand in a row; switches in rows above by their distance from them, those that lead to nothing but
    compute nodes below if others are above. Where switches of one distance are linked and all are next to
    compute nodes, they stand on a circle, their compute nodes outside. Other networks: None.
    """
    adjacency = _adjacency(topology)
    if adjacency[: topology.compute_count, : topology.compute_count].nnz:
        return None
    level = _levels(adjacency, topology.compute_count)
    src, dst = adjacency.nonzero()
    if np.any(level[src] == level[dst]):
        return _circle_of_routers(adjacency, topology.compute_count) if level.max() == 1 else None
    return _rows(adjacency, topology.compute_count, level)


def _adjacency(topology: Topology) -> csr_array:
    """Return which nodes are linked, in either direction, as a sparse matrix of 0 and 1."""
    links = topology.links
    real = links.src != links.dst
    ends = (links.src[real], links.dst[real])
    shape = (topology.node_count, topology.node_count)
    linked = csr_array((np.ones(len(ends[0])), ends), shape=shape)
    both = csr_array(linked + linked.T)
    both.data[:] = 1.0
    return both


def _levels(adjacency: csr_array, compute_count: int) -> NDArray[np.int64]:
    """Return int64[nodes]: the number of links to the nearest compute node."""
    level = np.full(adjacency.shape[0], -1)
    level[:compute_count] = 0
    while np.any(level < 0):
        reached = adjacency @ (level >= 0).astype(float) > 0
        level[reached & (level < 0)] = level.max() + 1
    return level


def _rows(adjacency: csr_array, compute_count: int, level: NDArray[np.int64]) -> SwitchedPositions:
    places = np.zeros((len(level), 2))
    places[:compute_count, 0] = _compute_row(adjacency, compute_count, level)
    width = float(np.ptp(places[:compute_count, 0]))
    height = max(_LOWEST_ROW, _ROW_HEIGHT * width)
    leads_up = adjacency @ (level > 0).astype(float) > 0
    below = (level == 1) & ~leads_up if np.any(leads_up[level == 1]) else np.zeros(len(level), dtype=bool)
    level = np.where(below, -1, level)
    for row in (-1, *range(1, level.max() + 1)):
        members = np.flatnonzero(level == row)
        lower = np.flatnonzero(level == (row - 1 if row > 0 else 0))
        if len(members):
            part = adjacency[members][:, lower]
            wanted = (part @ places[lower, 0]) / part.sum(axis=1)
            places[members, 0] = _spread(wanted, max(1.0, _ROW_SHARE * width / len(members)))
            places[members, 1] = row * height
    return places


def _compute_row(adjacency: csr_array, compute_count: int, level: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return float64[compute nodes]: places in order, with gaps where neighbours share no switch."""
    near = adjacency[:compute_count][:, np.flatnonzero(level == 1)]
    shared = (near[:-1].multiply(near[1:])).sum(axis=1)
    return np.concatenate([[0.0], np.cumsum(1.0 + _GROUP_GAP * (shared == 0))])


def _spread(wanted: NDArray[np.float64], gap: float) -> NDArray[np.float64]:
    """Return places near `wanted` (least squares), in its order and at least `gap` apart."""
    order = np.argsort(wanted, kind="stable")
    steps = gap * np.arange(len(wanted))
    places = np.empty(len(wanted))
    places[order] = isotonic_regression(wanted[order] - steps).x + steps
    return places


def _circle_of_routers(adjacency: csr_array, compute_count: int) -> SwitchedPositions:
    """Place switches clockwise from the top in order, and the compute nodes of each fanned out beyond it."""
    routers = adjacency.shape[0] - compute_count
    owner = np.asarray(adjacency[:compute_count][:, compute_count:].argmax(axis=1)).ravel()
    turn = 2 * math.pi / routers
    angles = math.pi / 2 - turn * np.arange(routers)
    radius = max(2.0, 2.2 * routers / (2 * math.pi))
    places: SwitchedPositions = np.empty((adjacency.shape[0], 2))
    places[compute_count:] = radius * _directions(angles)
    for router in range(routers):
        hosts = np.flatnonzero(owner == router)
        shifts = (np.arange(len(hosts)) - (len(hosts) - 1) / 2) * turn / len(hosts)
        places[hosts] = (radius + _FAN * max(1.5, 0.12 * radius)) * _directions(angles[router] - shifts)
    return places


def _directions(angles: NDArray[np.floating]) -> SwitchedPositions:
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)
