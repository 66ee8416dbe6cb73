"""The all-to-all flow problem of a network: one commodity per source, one price per class of links.

Source: the linear program of the full paper, appendix A.5, with flows added up by source. A flow from source s is
any way to bring one unit from s to each of the other ranks; the load of a link is the sum over all sources.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.automorphism import is_automorphism, orbits
from chorale.synth.topology.topology import Topology

MAX_CELLS = 2**28
"""Pairs of a source and a link."""


@dataclass(frozen=True, slots=True, eq=False)
class Commodities:
    """Sources and links up to symmetry; without symmetry, all of them.

    demand:         int64[1 or K, nodes], units that each source sends to each node, 0 to switches; one row where all
                    sources send alike, which is what they send to others: 1 to every rank
    src, dst:       int32[links] without self-loops, sorted by dst
    incoming:       int64[nodes + 1], links `incoming[v]` to `incoming[v + 1] - 1` end in v
    outgoing:       int64[nodes + 1] into `outgoing_links`, which lists the links by src
    sources:        int32[K], one rank of every class; `weights` int64[K], the sizes of the classes
    link_class:     int32[links]; `class_size` int64[C] counts the links of a class
    class_capacity: int64[C], bandwidth of a link of the class in units of 1 / `scale`
    link_ids:       int32[links], the links of the topology that these are

    The load of each link of class c is the sum over sources k and links e of c of weights[k] * flow[k, e] /
    class_size[c]: flows that are not symmetric themselves stand for their average over the symmetries.
    """

    demand: NDArray[np.int64]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    incoming: NDArray[np.int64]
    outgoing: NDArray[np.int64]
    outgoing_links: NDArray[np.int32]
    sources: NDArray[np.int32]
    weights: NDArray[np.int64]
    link_class: NDArray[np.int32]
    class_size: NDArray[np.int64]
    class_capacity: NDArray[np.int64]
    scale: int
    link_ids: NDArray[np.int32]

    @property
    def node_count(self) -> int:
        return int(self.demand.shape[1])

    @property
    def link_count(self) -> int:
        return len(self.src)

    def demand_of(self, block: slice) -> NDArray[np.int64]:
        """Return int64[1 or sources of the block, nodes]: what these sources send."""
        return self.demand if len(self.demand) == 1 else self.demand[block]

    @property
    def cells(self) -> int:
        """Pairs of a source and a link: the number of flow variables."""
        return len(self.sources) * self.link_count


def commodities_of(topology: Topology, symmetric: bool = True) -> Commodities:
    """Return the problem of `topology`, with sources and links merged along the symmetries that it carries.

    Each symmetry is checked exactly before it is used; with `symmetric` False none is. O(symmetries * L log L).
    Raises InvalidInput where more than 2^28 pairs of a source and a link would remain.
    """
    links = topology.links
    kept = np.flatnonzero(links.src != links.dst).astype(np.int32)  # self-loops carry nothing
    src, dst = links.src[kept], links.dst[kept]
    bandwidth, scale = links.integer_bandwidths()
    by_source = np.argsort(src, kind="stable").astype(np.int32)
    every_node = np.arange(topology.node_count + 1)
    demand = np.zeros((1, topology.node_count), dtype=np.int64)
    demand[:, : topology.compute_count] = 1
    sources, weights, link_class = _orbits(topology, kept, symmetric)
    require_cells(topology.spec, len(sources), len(kept))
    first = np.unique(link_class, return_index=True)[1]
    return Commodities(
        demand=demand,
        src=src,
        dst=dst,
        incoming=np.searchsorted(dst, every_node).astype(np.int64),
        outgoing=np.searchsorted(src[by_source], every_node).astype(np.int64),
        outgoing_links=by_source,
        sources=sources,
        weights=weights,
        link_class=link_class,
        class_size=np.bincount(link_class).astype(np.int64),
        class_capacity=bandwidth[kept][first],
        scale=scale,
        link_ids=kept,
    )


def require_cells(spec: str, sources: int, links: int) -> None:
    """Refuse a problem that would take too much time and memory."""
    if sources * links > MAX_CELLS:
        rule = f"all-to-all rates need at most {MAX_CELLS} pairs of a source and a link, after known symmetries"
        value = f"{sources} sources x {links} links in {spec}"
        raise InvalidInput(rule, value, "choose a smaller network, or one whose family knows its symmetries")


def _orbits(
    topology: Topology, kept: NDArray[np.int32], symmetric: bool
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """Return one source per orbit, the sizes of these orbits, and the orbit of each kept link."""
    generators = topology.automorphisms if symmetric else ()
    checked = [generator for generator in generators if is_automorphism(topology, generator)]
    if not checked:
        ranks = np.arange(topology.compute_count, dtype=np.int32)
        return ranks, np.ones(len(ranks), dtype=np.int64), np.arange(len(kept), dtype=np.int32)
    of_node = orbits(topology.node_count, checked)[: topology.compute_count]
    _, sources, weights = np.unique(of_node, return_index=True, return_counts=True)
    of_link = orbits(len(topology.links), [_link_permutation(topology, generator) for generator in checked])
    link_class = np.unique(of_link[kept], return_inverse=True)[1]
    return sources.astype(np.int32), weights.astype(np.int64), link_class.astype(np.int32)


def _link_permutation(topology: Topology, permutation: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return where a symmetry takes each link; parallel links of equal kind keep their order."""
    links = topology.links
    kinds = (links.latency_class, links.bandwidth_class)
    images = np.lexsort((*kinds, permutation[links.src], permutation[links.dst]))
    originals = np.lexsort((*kinds, links.src, links.dst))
    moved = np.empty(len(links), dtype=np.int64)
    moved[images] = originals
    return moved
