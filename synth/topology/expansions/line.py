"""Line graph: every link becomes a node."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.expansions.columns import ranked_topology, require_direct
from chorale.synth.topology.registry import require_size
from chorale.synth.topology.sorted_links import Column, Rates, sorted_links
from chorale.synth.topology.topology import Topology


def line_graph(topology: Topology, spec: str) -> Topology:
    """Return L(G): a node for every link of G, a link from u v to v w for every pair of such links.

    Nodes are ranked by (source, target, parallel index); a self-loop of G is a link like others and gets a self-loop.
    N nodes of degree d become d N nodes of degree d; the diameter grows by one. All links of G must be of one
    bandwidth and latency, which the new ones get. Symmetries of G carry over to its links. Reverse-symmetry stays.
    Raises InvalidInput for switches, unequal links, and a result that is too large. O(links of the result).
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", appendix D.1.
    """
    require_direct(topology, "line")
    links = topology.links
    if len(links.bandwidths) > 1 or len(links.latencies_s) > 1:
        rule = "line must be given a network whose links are all alike"
        raise InvalidInput(rule, f"{topology.spec} with several bandwidths or latencies", "make its links alike")
    order = line_order(topology)
    target = links.dst[order]
    first_out = np.searchsorted(links.src[order], np.arange(topology.node_count + 1))
    fan_out = np.diff(first_out)[target]
    total = int(fan_out.sum())
    require_size(spec, len(links), total)
    src = np.repeat(np.arange(len(links)), fan_out)
    start_of_run = np.repeat(np.cumsum(fan_out) - fan_out, fan_out)
    dst = np.repeat(first_out[target], fan_out) + np.arange(total) - start_of_run
    zeros = np.zeros(total, dtype=np.int32)
    rates = Rates(zeros, links.bandwidths, zeros, links.latencies_s)
    symmetries = [_moved_links(topology, order, symmetry) for symmetry in topology.automorphisms]
    return ranked_topology(spec, len(links), sorted_links(src, dst, rates), topology, symmetries)


def line_order(topology: Topology) -> NDArray[np.int64]:
    """Return the link ids of `topology` in the order in which they are ranks of its line graph."""
    return np.lexsort((topology.links.dst, topology.links.src))


def _moved_links(topology: Topology, order: NDArray[np.int64], symmetry: Column) -> Column:
    """Return where `symmetry` takes each rank of the line graph; parallel links keep their order."""
    links, count = topology.links, topology.node_count
    pair = links.src[order].astype(np.int64) * count + links.dst[order]
    moved_pair = symmetry[links.src[order]].astype(np.int64) * count + symmetry[links.dst[order]]
    moved: Column = np.searchsorted(pair, moved_pair) + links.parallel_index()[order]
    return moved
