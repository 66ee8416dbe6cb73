"""Positions of nodes in drawings: by family, switched networks in rows by level or on a circle, others by force."""

from __future__ import annotations

import itertools
import math

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from scipy.sparse import csr_array
from scipy.spatial import KDTree

from chorale.synth.topology.grammar import FamilyCall, FunctionCall, SpecTree, parse_spec
from chorale.synth.topology.topology import Topology

Positions = NDArray[np.float64]
"""float64[nodes, 2]."""

_GROUP_GAP = 0.7
_ROW_SHARE = 0.5  # of the widest row, for a row of few switches
_LOWEST_ROW, _ROW_HEIGHT = 2.0, 0.16  # of the widest row
_FAN = 1.2
_LONGEST_ROW = 16  # of compute nodes at one switch


def switched_positions(topology: Topology) -> Positions | None:
    """Return float64[nodes, 2] for a network in which compute nodes are linked with switches only, else None.

    Compute nodes stand in a row; switches in rows above by their distance from them, those that lead to nothing but
    compute nodes below if others are above. Where switches of one distance are linked and all are next to
    compute nodes, they stand on a circle, their compute nodes outside; many compute nodes around their only switch.
    Other networks: None.
    """
    links = topology.links
    real = links.src != links.dst
    ends = (links.src[real], links.dst[real])
    shape = (topology.node_count, topology.node_count)
    linked = csr_array((np.ones(len(ends[0])), ends), shape=shape)
    adjacency = csr_array(linked + linked.T)
    adjacency.data[:] = 1.0
    if adjacency[: topology.compute_count, : topology.compute_count].nnz:
        return None
    if topology.switch_count == 1 and topology.compute_count > _LONGEST_ROW:
        return np.concatenate([_circle(topology.compute_count), [[0.0, 0.0]]])
    level = np.full(adjacency.shape[0], -1)
    level[: topology.compute_count] = 0
    while np.any(level < 0):
        reached = adjacency @ (level >= 0).astype(float) > 0
        level[reached & (level < 0)] = level.max() + 1
    src, dst = adjacency.nonzero()
    if np.any(level[src] == level[dst]):
        return _circle_of_routers(adjacency, topology.compute_count) if level.max() == 1 else None
    return _rows(adjacency, topology.compute_count, level)


def _rows(adjacency: csr_array, compute_count: int, level: NDArray[np.int64]) -> Positions:
    places = np.zeros((len(level), 2))
    near = adjacency[:compute_count][:, np.flatnonzero(level == 1)]
    shared = (near[:-1].multiply(near[1:])).sum(axis=1)
    places[:compute_count, 0] = np.concatenate([[0.0], np.cumsum(1.0 + _GROUP_GAP * (shared == 0))])
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
            middles = (part @ places[lower, 0]) / part.sum(axis=1)
            places[members, 0] = _spread(middles, max(1.0, _ROW_SHARE * width / len(members)))
            places[members, 1] = row * height
    return places


def _spread(targets: NDArray[np.float64], gap: float) -> NDArray[np.float64]:
    """Return positions near `targets` (least squares), in its order and at least `gap` apart."""
    order = np.argsort(targets, kind="stable")
    steps = gap * np.arange(len(targets))
    places = np.empty(len(targets))
    places[order] = isotonic_regression(targets[order] - steps).x + steps
    return places


def _circle_of_routers(adjacency: csr_array, compute_count: int) -> Positions:
    """Place switches clockwise from the top in order, and the compute nodes of each fanned out beyond it."""
    routers = adjacency.shape[0] - compute_count
    owner = np.asarray(adjacency[:compute_count][:, compute_count:].argmax(axis=1)).ravel()
    turn = 2 * math.pi / routers
    angles = math.pi / 2 - turn * np.arange(routers)
    radius = max(2.0, 2.2 * routers / (2 * math.pi))
    places: Positions = np.empty((adjacency.shape[0], 2))
    places[compute_count:] = radius * _directions(angles)
    for router in range(routers):
        hosts = np.flatnonzero(owner == router)
        shifts = (np.arange(len(hosts)) - (len(hosts) - 1) / 2) * turn / len(hosts)
        places[hosts] = (radius + _FAN * max(1.5, 0.12 * radius)) * _directions(angles[router] - shifts)
    return places


def _directions(angles: NDArray[np.floating]) -> Positions:
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


_MAX_FORCE_NODES = 400
_SEED = 7
_CIRCULAR = ("ring", "biring", "uniring", "circulant", "complete")


def node_positions(topology: Topology) -> Positions:
    """Return where to draw each node; the typical distance to the nearest other node is 1.

    Grids stand on a grid, rings, circulants and complete graphs on a circle, hypercubes in a projection that shows
    their cubes, bipartite graphs in two columns, compute nodes behind switches in rows or on a circle, other networks
    by force with a fixed seed. More than 400 nodes of no known family stand on a circle.
    """
    places = _places(topology)
    nearest = np.asarray(KDTree(places).query(places, k=2)[0])[:, 1]
    return places / max(float(np.median(nearest)), 1e-9)


def _places(topology: Topology) -> Positions:
    family, arguments = _family(parse_spec(topology.spec))
    if family in ("torus", "mesh"):
        sizes = [int(size) for size in arguments.split("x")]
        return _grid(sizes) if len(sizes) > 1 or family == "mesh" else _circle(sizes[0])
    if family == "hypercube":
        return _hypercube(topology.node_count.bit_length() - 1)
    if family == "bipartite":
        return _two_columns(topology.node_count // 2)
    if topology.switch_count and (places := switched_positions(topology)) is not None:
        return places
    if family in _CIRCULAR or topology.node_count > _MAX_FORCE_NODES:
        return _circle(topology.node_count)
    return _by_force(topology)


def _family(tree: SpecTree) -> tuple[str, str]:
    """Return the family and arguments that give the positions, also through transpose; ("", "") if there is none."""
    if isinstance(tree, FunctionCall) and tree.name == "transpose":
        inner = tree.arguments[0]
        return _family(inner) if isinstance(inner, (FamilyCall, FunctionCall)) else ("", "")
    return (tree.name, tree.text) if isinstance(tree, FamilyCall) else ("", "")


def _grid(sizes: list[int]) -> Positions:
    """Place a grid: the last dimension to the right, the one before down, the others as copies of that plane."""
    right, down = sizes[-1], (sizes[-2] if len(sizes) > 1 else 1)
    steps = [np.array([1.0, 0.0]), np.array([0.0, -1.0])]
    width, height = float(right), float(down)
    for level, size in enumerate(reversed(sizes[:-2])):
        if level % 2 == 0:
            steps.append(np.array([width + 0.8, 0.4]))
            width = (width + 0.8) * size
        else:
            steps.append(np.array([0.4, -(height + 1.4)]))
            height = (height + 1.4) * size
    digits = np.array(list(itertools.product(*map(range, sizes))), dtype=float)
    places: Positions = digits[:, ::-1] @ np.array(steps[: len(sizes)])
    return places


def _hypercube(dimensions: int) -> Positions:
    """Project so that a square, a cube, two cubes side by side, two such rows, … can be seen."""
    directions = [(1.5, 0.0), (0.0, 1.5), (0.6, 0.5), (3.2, 0.35), (0.35, -3.0)]
    while len(directions) < dimensions:
        x, y = directions[-2]
        directions.append((2.1 * x, 2.1 * y))
    bits = (np.arange(2**dimensions)[:, None] >> np.arange(dimensions)) & 1
    places: Positions = bits @ np.array(directions[:dimensions])
    return places


def _two_columns(size: int) -> Positions:
    rows = -np.arange(size, dtype=float)
    left = np.stack([np.zeros(size), rows], axis=1)
    gap = np.array([max(1.5, 0.7 * size), 0.0])
    return np.concatenate([left, left + gap])


def _circle(count: int) -> Positions:
    """Place nodes clockwise from the top."""
    angles = math.pi / 2 - 2 * math.pi * np.arange(count) / count
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _by_force(topology: Topology) -> Positions:
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(topology.node_count))
    graph.add_edges_from(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    if len(graph) <= 100:
        places = nx.kamada_kawai_layout(graph, pos=nx.circular_layout(graph))
    else:
        places = nx.spring_layout(graph, seed=_SEED)
    return np.array([places[node] for node in range(topology.node_count)])
