"""Computes the positions of a network's nodes in drawings, and defines pictures that are drawn only when shown."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from chorale.synth.errors import Unavailable
from chorale.synth.lazy_modules import missing_extra
from chorale.synth.topology.registry import FamilyCall, FunctionCall, SpecTree, parse_spec
from chorale.synth.topology.topology import Topology

Positions = NDArray[np.float64]
"""Coordinates of the nodes, float64[nodes, 2]."""
_LOWEST_ROW, _ROW_HEIGHT = 2.0, 0.16  # minimum distance between rows; distance / width of the widest row
_MAX_FORCE_NODES = 400


def switched_positions(topology: Topology) -> Positions | None:
    """Return positions float64[nodes, 2], or None if compute nodes are linked directly or no layout fits.

    Compute nodes form a row. Switches form rows above it, ordered by their distance from compute nodes; switches that
    lead only to compute nodes are drawn below if there are other switches. If all switches are next to compute nodes
    and linked with each other, they form a circle with their compute nodes outside. A single switch with many compute
    nodes is drawn in their middle.
    """
    graph, ranks = _graph(topology), range(topology.compute_count)
    level = {node: depth for depth, nodes in enumerate(nx.bfs_layers(graph, ranks)) for node in nodes}
    if graph.subgraph(ranks).edges:
        return None
    if topology.switch_count == 1 and topology.compute_count > 16:
        return np.concatenate([_circle(topology.compute_count), [[0.0, 0.0]]])
    if any(level[one] == level[other] for one, other in graph.edges):
        if max(level.values()) > 1:
            return None
        hosts_on, count = topology.compute_count, topology.switch_count
        radius = max(2.0, 0.35 * count)
        places = np.concatenate([np.empty((hosts_on, 2)), radius * _circle(count)])
        for router in range(hosts_on, hosts_on + count):  # fan out the compute nodes beyond their switch
            hosts = [rank for rank in ranks if min(graph[rank]) == router]
            shifts = (np.arange(len(hosts)) - (len(hosts) - 1) / 2) / max(len(hosts), 1)
            places[hosts] = 1.6 * radius * _around(router - hosts_on + shifts, count)
        return places
    ends = {node for node in graph if level[node] == 1 and not any(level[near] == 2 for near in graph[node])}
    if max(level.values()) > 1:
        level |= dict.fromkeys(ends, -1)
    width = float(topology.compute_count)
    height = max(_LOWEST_ROW, _ROW_HEIGHT * width)
    places = np.empty((len(graph), 2))
    for row in (0, -1, *range(1, max(level.values()) + 1)):
        nodes = [node for node in graph if level[node] == row]
        if row:  # place each node near its neighbours in the previous row
            before = {node: [near for near in graph[node] if abs(level[near]) == abs(row) - 1] for node in nodes}
            nodes.sort(key=lambda node: float(places[before[node], 0].mean()))
        places[nodes, 0] = (np.arange(len(nodes)) + 0.5) * width / max(len(nodes), 1)
        places[nodes, 1] = row * height
    return places


def _graph(topology: Topology) -> nx.Graph[int]:
    """Return a graph with the nodes in order and an edge for each pair of different nodes that are linked."""
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(topology.node_count))
    graph.add_edges_from(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    return graph


def node_positions(topology: Topology) -> Positions:
    """Return where to draw each node; the typical distance to the nearest other node is 1.

    Grids are drawn as grids; rings, circulants and complete graphs as circles; hypercubes in a projection that shows
    their cubes; bipartite graphs in two columns; compute nodes behind switches in rows or on a circle; other networks
    with a force-directed layout (fixed seed). Networks of no known family with more than 400 nodes are drawn as
    circles.
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
        size = topology.node_count // 2
        left = np.stack([np.zeros(size), -np.arange(size, dtype=float)], axis=1)
        return np.concatenate([left, left + np.array([max(1.5, 0.7 * size), 0.0])])
    if topology.switch_count and (places := switched_positions(topology)) is not None:
        return places
    if family in ("ring", "biring", "uniring", "circulant", "complete") or topology.node_count > _MAX_FORCE_NODES:
        return _circle(topology.node_count)
    graph = _graph(topology)
    if len(graph) <= 100:
        points = nx.kamada_kawai_layout(graph, pos=nx.circular_layout(graph))
    else:
        points = nx.spring_layout(graph, seed=7)
    return np.array([points[node] for node in graph])


def _family(tree: SpecTree) -> tuple[str, str]:
    """Return the network's family and the family's arguments; ("", "") if the network is not a plain family.

    `transpose` is ignored, because it does not change positions.
    """
    if isinstance(tree, FunctionCall) and tree.name == "transpose":
        inner = tree.arguments[0]
        return _family(inner) if isinstance(inner, (FamilyCall, FunctionCall)) else ("", "")
    return (tree.name, tree.text) if isinstance(tree, FamilyCall) else ("", "")


def _grid(sizes: list[int]) -> Positions:
    """Return positions for a grid: the last dimension runs right, the one before it down; others repeat this plane."""
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
    """Return positions for a hypercube that show its squares, cubes, pairs of cubes, rows of such pairs, and so on."""
    directions = [(1.5, 0.0), (0.0, 1.5), (0.6, 0.5), (3.2, 0.35), (0.35, -3.0)]
    while len(directions) < dimensions:
        x, y = directions[-2]
        directions.append((2.1 * x, 2.1 * y))
    bits = (np.arange(2**dimensions)[:, None] >> np.arange(dimensions)) & 1
    places: Positions = bits @ np.array(directions[:dimensions])
    return places


def _circle(count: int) -> Positions:
    return _around(np.arange(count), count)


def _around(turns: NDArray[Any], count: int) -> Positions:
    """Return the points on a circle that are `turns` / `count` of a full turn clockwise from the top."""
    angles = math.pi / 2 - 2 * math.pi * turns / count
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


class Picture:
    """A drawing that the function `draw` writes to a .svg, .png or .pdf file only when it is shown or saved."""

    def __init__(self, draw: Callable[[Path], None]) -> None:
        self._draw = draw

    @cached_property
    def svg(self) -> str:
        """Return the drawing as SVG text. Raises Unavailable if the extra `plot` is not installed."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "picture.svg"
            self._drawn(path)
            return path.read_text()

    def save(self, path: str | Path) -> Path:
        """Write the drawing to `path`, whose extension is .svg, .png or .pdf; return the path."""
        self._drawn(Path(path))
        return Path(path)

    def _drawn(self, path: Path) -> None:
        try:
            self._draw(path)
        except ModuleNotFoundError as error:
            missing = missing_extra(error)
            raise missing or error from None

    def _repr_svg_(self) -> str | None:
        try:
            return self.svg
        except Unavailable:  # the notebook then shows text instead
            return None

    def __repr__(self) -> str:
        return "Picture: .svg is its text, .save(path) writes .svg, .png or .pdf"
