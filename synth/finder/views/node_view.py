"""What breadth-first broadcast at one node depends on: from how far, and over which of its links, every shard comes.

A shard of node v arrives at node u in step t, its distance, over those in-links of u whose tails are at distance t - 1.
Steps and loads of a network follow from these facts at each of its nodes, and those of a line graph, degree expansion
or product from the facts at nodes of the networks that it is made of (`chorale.synth.finder.views.view_expansions`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from chorale.synth.topology.automorphism import checked_orbits
from chorale.synth.topology.distance import arcs_forward, distances_to
from chorale.synth.topology.topology import Topology

Numbers = NDArray[np.int64]
Vertex = TypeVar("Vertex", bound=Hashable)


@dataclass(frozen=True, slots=True, eq=False)
class Walks:
    """Walks of up to some number of links from a node: the network around it, with the nodes in order of their depth.

    positions: int64[nodes]: where each node lies; that of the start, node 0, is 0
    heads:     int64[inner, degree]: where the links lead out of those nodes whose walks go on, which come first
    arrivals:  int64[inner, degree]: which in-link of the start each of these links is, -1 if it leads elsewhere
    depth:     number of links
    """

    positions: Numbers
    heads: Numbers
    arrivals: Numbers
    depth: int


@dataclass(frozen=True, slots=True, eq=False)
class NodeView:
    """What node u sees. A position is step << degree | set: a distance to u, and the in-links of u that are the last
    of shortest paths, as bits.

    positions: int64, ascending: where nodes lie, u itself at 0
    counts:    int64: how many nodes lie there
    around:    where u itself would lie if it were reached only by leaving it: the shortest closed walks
    walks:     the nodes that walks from u reach
    """

    degree: int
    positions: Numbers
    counts: Numbers
    around: int
    walks: Walks

    @property
    def one_step(self) -> int:
        """The difference of positions that are a step apart."""
        return 1 << self.degree


def walks_from(
    start: Vertex,
    depth: int,
    heads_of: Callable[[Vertex], Sequence[Vertex]],
    position_of: Callable[[Vertex], int],
    arrival_of: Callable[[Vertex, int], int],
) -> Walks:
    """Return the walks of `depth` links from `start` in the network that `heads_of` describes, in order of its links.

    arrival_of(node, index): which in-link of the start the link of that index out of `node` is; asked only if it is.
    """
    numbers: dict[Vertex, int] = {start: 0}
    nodes = [start]
    heads: list[list[int]] = []
    arrivals: list[list[int]] = []
    for _ in range(depth):
        for node in nodes[len(heads) :]:
            following = heads_of(node)
            for head in following:
                if head not in numbers:
                    numbers[head] = len(nodes)
                    nodes.append(head)
            heads.append([numbers[head] for head in following])
            arrivals.append([arrival_of(node, index) if head == start else -1 for index, head in enumerate(following)])
    width = len(heads[0]) if heads else 0
    shape = (len(heads), width)
    return Walks(
        np.array([position_of(node) for node in nodes], dtype=np.int64),
        np.array(heads, dtype=np.int64).reshape(shape),
        np.array(arrivals, dtype=np.int64).reshape(shape),
        depth,
    )


def views_of_topology(topology: Topology, depth: int) -> list[NodeView]:
    """Return the views of a node of every orbit of the known symmetries, each checked, with walks of `depth` links.

    The network must be regular, of equal links and without switches. O(orbits * degree * links) time.
    """
    links, nodes = topology.links, topology.node_count
    tails = links.src.reshape(nodes, -1)
    heads = arcs_forward(topology)[1].reshape(nodes, -1).astype(np.int64)
    link_ids = np.argsort(links.src, kind="stable").reshape(nodes, -1)
    chosen = np.unique(checked_orbits(topology), return_index=True)[1]
    return [_view_of(topology, int(node), tails[node], (heads, link_ids), depth) for node in chosen]


def _view_of(
    topology: Topology, node: int, tails: NDArray[np.int32], outward: tuple[Numbers, Numbers], depth: int
) -> NodeView:
    heads, link_ids = outward
    degree = len(tails)
    hops = distances_to(topology, np.concatenate([[node], tails])).astype(np.int64)
    usable = hops[1:] + 1 == hops[0]
    where = hops[0] << degree | (usable << np.arange(degree)[:, None]).sum(axis=0)
    positions, counts = np.unique(where, return_counts=True)
    nearest = hops[1:, node]
    way_round = int(nearest.min()) + 1
    last_links = int(((nearest + 1 == way_round) << np.arange(degree)).sum())
    walks = walks_from(
        node,
        depth,
        lambda one: heads[one].tolist(),
        lambda one: int(where[one]),
        lambda one, index: int(link_ids[one, index]) - node * degree,
    )
    return NodeView(degree, positions, counts.astype(np.int64), way_round << degree | last_links, walks)
