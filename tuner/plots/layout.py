"""Where the nodes of a topology are drawn."""

from __future__ import annotations

import itertools
import math

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from chorale.synth.topology.grammar import FamilyCall, FunctionCall, SpecTree, parse_spec
from chorale.synth.topology.topology import Topology
from chorale.tuner.plots.layers import switched_positions

Positions = NDArray[np.float64]
"""float64[nodes, 2]."""

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
    """Return the family and arguments whose places fit, also through transpose; ("", "") if there is none."""
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
