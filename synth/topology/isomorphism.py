"""Isomorphism of topologies: a key that does not depend on the names of nodes, and the renaming itself.

Nodes get colours that are refined until neighbours distinguish no more nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.identity import content_id
from chorale.synth.kernels.compiled import compiled
from chorale.synth.kernels.splitmix import STEP, mix
from chorale.synth.topology.topology import Topology

Colours = NDArray[np.uint64]

_COMPUTE, _SWITCH = np.uint64(0x1F83D9ABFB41BD6B), np.uint64(0x5BE0CD19137E2179)
CHOSEN = np.uint64(0xA54FF53A5F1D36F1)
"""Mixed into the colour of a node to set it apart from the others of its colour."""


@dataclass(frozen=True, slots=True, eq=False)
class Coloured:
    """Links of a topology as columns for refinement. `kind` is a number per (bandwidth, latency)."""

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    kind: NDArray[np.uint64]
    start: Colours

    @staticmethod
    def of(topology: Topology) -> Coloured:
        """Return `topology` with one colour for compute nodes and one for switches that can do the same."""
        links = topology.links
        kind = links.bandwidth_class.astype(np.uint64) * np.uint64(len(links.latencies_s))
        kind += links.latency_class.astype(np.uint64)
        start = np.full(topology.node_count, _SWITCH, dtype=np.uint64)
        start[: topology.compute_count] = _COMPUTE
        for node, ability in topology.abilities.items():
            start[node] ^= np.uint64(int(content_id(ability.facts())[:16], 16))
        return Coloured(links.src.astype(np.int64), links.dst.astype(np.int64), kind, start)

    def refined(self, colours: Colours) -> Colours:
        """Return `colours` refined until the number of different ones grows no more.

        A colour is a 64-bit mix of the node's own, of those that it has links from and of those that it has links to,
        with the kinds of the links: the same for nodes of isomorphic networks, whatever their names. Different
        nodes may share one by accident, so a caller that needs certainty must check. O(N log N + L) per round.
        """
        return _refine(self.src, self.dst, self.kind, colours)

    def chosen(self, colours: Colours, node: int) -> Colours:
        """Return `colours` with `node` set apart, refined."""
        changed = colours.copy()
        changed[node] ^= CHOSEN
        return self.refined(changed)


@compiled
def _refine(
    src: NDArray[np.int64], dst: NDArray[np.int64], kind: NDArray[np.uint64], colours: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    colour, count = colours.copy(), _distinct(colours)
    while count < len(colour):
        arriving, leaving = np.zeros_like(colour), np.zeros_like(colour)
        for link in range(len(src)):
            tail, head = src[link], dst[link]
            arriving[head] += mix(colour[tail] + kind[link] * STEP)
            leaving[tail] += mix(~colour[head] + kind[link] * STEP)
        for node in range(len(colour)):
            colour[node] = mix(colour[node] + np.uint64(3) * mix(arriving[node]) + np.uint64(5) * mix(leaving[node]))
        new_count = _distinct(colour)
        if new_count <= count:
            break
        count = new_count
    return colour


@compiled
def _distinct(colours: NDArray[np.uint64]) -> int:
    ordered = np.sort(colours)
    count = 1
    for position in range(1, len(ordered)):
        if ordered[position] != ordered[position - 1]:
            count += 1
    return count


TRIES_PER_NODE = 8


def shape_key(topology: Topology) -> str:
    """Return a content id that is equal for topologies which differ in names and numbering only.

    Different networks may share it, for example regular ones of equal size: it finds candidates, and
    `isomorphism` decides. O((N log N + L) times rounds of refinement).
    """
    coloured = Coloured.of(topology)
    facts = {
        "format": "chorale-shape/1",
        "bandwidth_unit": topology.bandwidth_unit,
        "compute_count": topology.compute_count,
        "bandwidths": topology.links.bandwidths,
        "latencies_s": topology.links.latencies_s,
    }
    return content_id(facts, (np.sort(coloured.refined(coloured.start)),))


def isomorphism(source: Topology, target: Topology) -> NDArray[np.int32] | None:
    """Return int32 per node of `source`: the node of `target` that takes its place, or None if none was found.

    The renaming keeps kinds of nodes and maps links onto links of equal bandwidth and latency, as many of each as
    there are; that is checked exactly. Nodes are set apart one by one and colours refined, as in McKay's
    individualisation and refinement, with one branch followed in `source` and all tried in `target`. The search
    gives up after `TRIES_PER_NODE` refinements per node: None then says nothing about the networks. Vertex-transitive
    networks and fabrics of equal boxes need no second try. Deterministic.
    """
    if not _comparable(source, target):
        return None
    search = _Search(source, target)
    first, second = search.source.refined(search.source.start), search.target.refined(search.target.start)
    return search.extend(first, second)


def carries(source: Topology, target: Topology, new_node: NDArray[np.integer]) -> bool:
    """Return whether renaming each node v of `source` to `new_node[v]` gives the links of `target`. O(L log L)."""
    if not _comparable(source, target) or not np.array_equal(np.sort(new_node), np.arange(target.node_count)):
        return False
    if np.any(new_node[: source.compute_count] >= target.compute_count):
        return False
    links = source.links
    moved = _sorted(new_node[links.src], new_node[links.dst], links.bandwidth_class, links.latency_class)
    links = target.links
    return np.array_equal(moved, _sorted(links.src, links.dst, links.bandwidth_class, links.latency_class))


class _Search:
    """A search for an isomorphism."""

    def __init__(self, source: Topology, target: Topology) -> None:
        self.networks = (source, target)
        self.source, self.target = Coloured.of(source), Coloured.of(target)
        self.tries = TRIES_PER_NODE * source.node_count

    def extend(self, first: Colours, second: Colours) -> NDArray[np.int32] | None:
        """Return a renaming that maps colours onto equal colours, None if there is none or tries ran out."""
        branches = [iter([(first, second)])]
        while branches:
            pair = next(branches[-1], None)
            if pair is None:
                branches.pop()
                continue
            order, other = (np.argsort(colours, kind="stable") for colours in pair)
            cell = _first_shared_colour(pair[0][order])
            if not np.array_equal(pair[0][order], pair[1][other]):
                continue
            if cell is not None:
                branches.append(self._branches(*pair, order[cell], other[cell]))
                continue
            new_node = np.empty(len(order), dtype=np.int32)
            new_node[order] = other
            if carries(*self.networks, new_node):
                return new_node
        return None

    def _branches(
        self, first: Colours, second: Colours, cell: NDArray[np.intp], other: NDArray[np.intp]
    ) -> Iterator[tuple[Colours, Colours]]:
        """Yield colours with the first node of `cell` set apart and each of `other`, while there are tries left."""
        chosen = self.source.chosen(first, int(cell[0]))
        for node in other:
            if self.tries == 0:
                return
            self.tries -= 1
            yield chosen, self.target.chosen(second, int(node))


def _first_shared_colour(ordered: Colours) -> slice | None:
    """Return where in `ordered` the lowest colour that several nodes share lies, None if there is none."""
    shared = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(shared) == 0:
        return None
    return slice(int(shared[0]), int(np.searchsorted(ordered, ordered[shared[0]], side="right")))


def _comparable(source: Topology, target: Topology) -> bool:
    """Whether counts and tables are equal, so that classes of links mean the same in both."""
    return all(
        (
            source.compute_count == target.compute_count,
            source.node_count == target.node_count,
            source.bandwidth_unit == target.bandwidth_unit,
            len(source.links) == len(target.links),
            source.links.bandwidths == target.links.bandwidths,
            source.links.latencies_s == target.links.latencies_s,
        )
    )


def _sorted(src: NDArray[Any], dst: NDArray[Any], bandwidth: NDArray[Any], latency: NDArray[Any]) -> NDArray[np.int64]:
    """Return the four columns as rows of one array, in one order."""
    rows = np.stack([column.astype(np.int64) for column in (src, dst, bandwidth, latency)])
    return rows[:, np.lexsort(rows)]
