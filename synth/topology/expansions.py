"""Derives networks from others: bidirectional copy, degree expansion, line graph, product, switches as processes."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.registry import require_size
from chorale.synth.topology.topology import BandwidthUnit, Column, Links, Rates, Topology, is_automorphism, sorted_links


def ranked_topology(
    spec: str, node_count: int, links: Links, unit: BandwidthUnit, symmetries: Iterable[Column]
) -> Topology:
    """Return a network without switches in which the id of each node is its rank."""
    moves = tuple(symmetry.astype(np.int32) for symmetry in symmetries)
    return Topology(spec, tuple(map(str, range(node_count))), node_count, links, unit, moves)


def require_direct(topology: Topology, function: str) -> None:
    """Raise InvalidInput if `topology` has switches. `function`: name for the error message, such as "line"."""
    if topology.switch_count:
        value = f"{topology.spec} with {topology.switch_count} switches"
        raise InvalidInput(f"{function} must be given a network without switches", value, "choose a direct-connect one")


def bidirectional(topology: Topology) -> Topology:
    """Return topology G with an additional link from v to u for every link from u to v, at the same rate.

    Degree d becomes 2 d; if G is already bidirectional, the result has two parallel links for each link of G. The nodes
    and symmetries of G are kept, and the result is reverse-symmetric (isomorphic to its transpose). If G is
    reverse-symmetric, half of every shard can follow a schedule for G and the other half the mirrored schedule, at the
    same cost. BFB on the result never takes more steps than on G, but can take more time if links become parallel.
    O(L log L).
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", appendix A.6.
    """
    links = topology.links
    rates = Rates(
        np.tile(links.bandwidth_class, 2), links.bandwidths, np.tile(links.latency_class, 2), links.latencies_s
    )
    both_src, both_dst = np.concatenate([links.src, links.dst]), np.concatenate([links.dst, links.src])
    return replace(topology, spec=f"bidirectional({topology.spec})", links=sorted_links(both_src, both_dst, rates))


def degree_expansion(topology: Topology, copies: int, spec: str) -> Topology:
    """Return G * n: n copies of every node, and links from each copy of u to each copy of v for every link (u, v) of G.

    Copy i of node v has rank v n + i. N nodes of degree d become n N nodes of degree n d; links keep their bandwidth
    and latency. The result keeps the symmetries of G and gains a symmetry that rotates the copies of every node. If G
    is reverse-symmetric, so is the result. If G has a bandwidth-optimal schedule, so has the result (theorem 11).
    Raises InvalidInput if G has switches, or self-loops, which would join copies of the same node. O(links of the
    result).
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", definition 13.
    """
    require_direct(topology, "degree")
    links = topology.links
    loops = np.flatnonzero(links.src == links.dst)
    if len(loops):
        rule = "degree needs a network without self-loops: {}"
        raise InvalidInput(
            rule, f"{topology.spec} with a link from {links.src[loops[0]]} to itself", "use line instead"
        )
    count = copies * topology.node_count
    copy_out = np.repeat(np.arange(copies), copies)
    copy_in = np.tile(np.arange(copies), copies)
    src = (links.src[:, None] * np.int64(copies) + copy_out).ravel()
    dst = (links.dst[:, None] * np.int64(copies) + copy_in).ravel()
    rates = Rates(
        np.repeat(links.bandwidth_class, copies**2),
        links.bandwidths,
        np.repeat(links.latency_class, copies**2),
        links.latencies_s,
    )
    copy, node = np.arange(copies), np.arange(topology.node_count)
    symmetries: list[Column] = [
        (symmetry[:, None] * np.int64(copies) + copy).ravel() for symmetry in topology.automorphisms
    ]
    if copies > 1:  # the symmetry that rotates the copies of every node by one
        symmetries.append((node[:, None] * copies + (copy + 1) % copies).ravel())
    return ranked_topology(spec, count, sorted_links(src, dst, rates), topology.bandwidth_unit, symmetries)


def line_graph(topology: Topology, spec: str) -> Topology:
    """Return the line graph L(G): one node per link of G, and a link from node (u, v) to every node (v, w).

    Nodes are ranked by (source, target, parallel index) of the link. A self-loop of G becomes a node with a self-loop.
    N nodes of degree d become d N nodes of degree d; the diameter grows by one. All links of G must have the same
    bandwidth and latency, which the links of the result inherit. The symmetries of G become symmetries of the result.
    Reverse symmetry and Moore optimality are kept; the bandwidth factor grows by at most 1/N. Raises InvalidInput if G
    has switches or links of different rates, or if the result is too large. O(links of the result).
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", appendix D.1.
    """
    require_direct(topology, "line")
    links = topology.links
    if len(links.bandwidths) > 1 or len(links.latencies_s) > 1:
        rule = "line needs a network whose links are all equal, not {}"
        raise InvalidInput(rule, f"{topology.spec} with several bandwidths or latencies", "make its links equal")
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
    links_src, links_dst = links.src[order].astype(np.int64), links.dst[order]
    pair, parallel = links_src * topology.node_count + links_dst, links.parallel_index()[order]
    symmetries: list[Column] = [  # parallel links keep their order
        np.searchsorted(pair, symmetry[links_src].astype(np.int64) * topology.node_count + symmetry[links_dst])
        + parallel
        for symmetry in topology.automorphisms
    ]
    return ranked_topology(spec, len(links), sorted_links(src, dst, rates), topology.bandwidth_unit, symmetries)


def line_order(topology: Topology) -> NDArray[np.int64]:
    """Return the link ids of `topology`, in the order of the corresponding nodes of its line graph."""
    return np.lexsort((topology.links.dst, topology.links.src))


def cartesian_product(factors: Sequence[Topology], spec: str, function: str = "product") -> Topology:
    """Return the Cartesian product of `factors`: each link changes one coordinate along a link of one factor.

    Ranks are mixed-radix numbers; the coordinate of the last factor varies fastest. Node counts multiply; degrees and
    diameters add up. Links keep their bandwidth and latency, and self-loops remain self-loops. The result has the
    symmetries of every factor, and is reverse-symmetric if all factors are. BFB is bandwidth-optimal on the product if
    it is bandwidth-optimal on every factor and no factor has parallel links (theorem 13). Raises InvalidInput if a
    factor has switches or if bandwidth units differ. `function` is the name to use in error messages. O(links of the
    result).
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", definition 3.
    """
    for factor in factors:
        require_direct(factor, function)
    units = {factor.bandwidth_unit for factor in factors}
    if len(units) > 1:
        rule = f"{function} needs networks with the same bandwidth unit, not {{}}"
        raise InvalidInput(rule, " and ".join(sorted(units)), "convert the bandwidths")
    sizes = [factor.node_count for factor in factors]
    rank = np.arange(math.prod(sizes), dtype=np.int32).reshape(sizes)
    src, dst = list[Column](), list[Column]()
    bandwidth_class, latency_class = list[Column](), list[Column]()
    bandwidths: list[Fraction] = []
    latencies_s: list[Fraction] = []
    for axis, links in enumerate(factor.links for factor in factors):
        tails = np.take(rank, links.src, axis)
        src.append(tails.ravel())
        dst.append(np.take(rank, links.dst, axis).ravel())
        along_axis = (-1, *[1] * (len(sizes) - axis - 1))
        for classes, own, table in (
            (bandwidth_class, links.bandwidth_class, bandwidths),
            (latency_class, links.latency_class, latencies_s),
        ):
            classes.append(np.broadcast_to((own + len(table)).reshape(along_axis), tails.shape).ravel())
        bandwidths += links.bandwidths
        latencies_s += links.latencies_s
    rates = Rates(np.concatenate(bandwidth_class), bandwidths, np.concatenate(latency_class), latencies_s)
    product = sorted_links(np.concatenate(src), np.concatenate(dst), rates)
    symmetries: list[Column] = [
        np.take(rank, symmetry, axis).ravel()
        for axis, factor in enumerate(factors)
        for symmetry in factor.automorphisms
    ]
    return ranked_topology(spec, rank.size, product, units.pop(), symmetries)


@dataclass(frozen=True, slots=True, eq=False)
class Relabelled:
    """A copy of a network in which some switches have become compute nodes.

    origin: int32 per link of `network`: the original link
    roots:  number of possible tree roots, which are the compute nodes 0 to `roots` - 1
    """

    network: Topology
    origin: NDArray[np.int32]
    roots: int


def promoted(topology: Topology, switches: Sequence[int]) -> Relabelled:
    """Return a copy of `topology` with `switches` as compute nodes, numbered after the ranks. O(links log links)."""
    ranks, nodes, links = topology.compute_count, topology.node_count, topology.links
    chosen = sorted(switches)
    order = np.concatenate([np.arange(ranks), chosen, np.setdiff1d(np.arange(ranks, nodes), chosen)]).astype(np.int64)
    label = np.argsort(order)
    useful = np.flatnonzero(links.src != links.dst)
    src, dst = label[links.src[useful]], label[links.dst[useful]]
    wide, late = links.bandwidth_class[useful], links.latency_class[useful]
    by_end = np.lexsort((late, -wide.astype(np.int64), src, dst))
    moved_links = sorted_links(src, dst, Rates(wide, links.bandwidths, late, links.latencies_s))
    names = tuple(topology.node_ids[node] for node in order.tolist())
    network = Topology(topology.spec, names, ranks + len(chosen), moved_links, topology.bandwidth_unit)
    moved = (label[symmetry[order]].astype(np.int32) for symmetry in topology.automorphisms)
    network = replace(network, automorphisms=tuple(each for each in moved if is_automorphism(network, each)))
    return Relabelled(network, useful[by_end].astype(np.int32), ranks)


def process_network(topology: Topology) -> Topology:
    """Return a network in which the switches that reduce or multicast data are compute nodes, after the ranks.

    The local runner emulates each of these switches with a process. O(links log links). Raises InvalidInput if no
    switch has such an ability.
    """
    if not topology.abilities:
        rule = "{} has no switches that add or multicast"
        raise InvalidInput(rule, topology.spec, "declare them with able(SPEC)")
    network = promoted(topology, sorted(topology.abilities)).network
    return replace(network, spec=f"processes({topology.spec})")
