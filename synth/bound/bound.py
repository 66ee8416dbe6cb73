"""Lower bounds on the bandwidth time of collectives, exact and certified.

allgather: the optimum of any schedule is max over node sets T of (N - |T|) / (N * bandwidth into T), counting
ranks in T (bandwidth-optimal pipeline, theorem 1). It is found by Newton's method over cuts: guess a time,
test every rank by a maximum flow, and where the flow falls short its cut gives a larger time. reduce_scatter
is allgather on the transpose. allreduce: the larger of theorem 16 (the whole vector crosses every cut both
ways) and the volume bound behind theorem 17 (ranks receive 2 (N - 1) M in all).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np

from synth.bound.cut import Bound
from synth.bound.flow import LARGEST_CAPACITY, FlowNetwork, max_flow, sink_side
from synth.collective import Collective, CollectiveName
from synth.errors import InvalidInput
from synth.topology.topology import Topology
from synth.topology.transpose import transpose_with_links


def lower_bound(topology: Topology, collective: Collective, achieved: Fraction | None = None) -> Bound:
    """Return the best bound this module knows on T_B / M of `collective`.

    With `achieved`, the time of a verified schedule, the search ends as soon as a bound meets it: nothing can
    be better. Cost: a few passes of one maximum flow per rank, none if single-rank cuts already decide.
    """
    if collective.name == CollectiveName.ALLGATHER:
        return _allgather(topology, achieved)
    if collective.name == CollectiveName.REDUCE_SCATTER:
        bound = _allgather(transpose_with_links(topology)[0], achieved)
        return Bound("out-of", bound.nodes, bound.value)
    if collective.name == CollectiveName.ALLREDUCE:
        return _allreduce(topology, achieved)
    raise InvalidInput(
        "bounds exist for allgather, reduce_scatter and allreduce", collective.name, "choose one of them"
    )


def bandwidth_into(topology: Topology, nodes: Iterable[int]) -> Fraction:
    """Return the total bandwidth of links from outside into the set `nodes`."""
    inside = np.zeros(topology.node_count, dtype=bool)
    inside[list(nodes)] = True
    crossing = inside[topology.links.dst] & ~inside[topology.links.src]
    classes = np.bincount(topology.links.bandwidth_class[crossing], minlength=len(topology.links.bandwidths))
    return sum(
        (int(count) * value for count, value in zip(classes, topology.links.bandwidths, strict=True)), Fraction(0)
    )


def _ingress(topology: Topology) -> list[Fraction]:
    """Return the bandwidth into each rank, self-loops left out."""
    links = topology.links
    real = links.src != links.dst
    totals = [Fraction(0)] * topology.compute_count
    counts = np.zeros((topology.node_count, len(links.bandwidths)), dtype=np.int64)
    np.add.at(counts, (links.dst[real], links.bandwidth_class[real]), 1)
    for rank in range(topology.compute_count):
        totals[rank] = sum((int(n) * b for n, b in zip(counts[rank], links.bandwidths, strict=True)), Fraction(0))
    return totals


def _allgather(topology: Topology, achieved: Fraction | None) -> Bound:
    ranks = topology.compute_count
    ingress = _ingress(topology)
    rank = min(range(ranks), key=lambda candidate: ingress[candidate])
    best = Bound("into", (rank,), Fraction(ranks - 1, ranks) / ingress[rank])
    if achieved is not None and best.value >= achieved:
        return best
    improved: Bound | None = best
    while improved is not None:
        best = improved
        improved = _larger_cut(topology, best)
    return best


def _larger_cut(topology: Topology, best: Bound) -> Bound | None:
    """Return a cut that proves more than `best`, or None if every rank can be fed in that time.

    The network has a source that feeds every rank with one shard's worth; ranks already found to be served are
    fed without limit, since cuts around them are settled.
    """
    ranks, nodes = topology.compute_count, topology.node_count
    time = best.value * ranks  # time to move whole shards: capacities time * bandwidth, supplies 1
    integer, scale = topology.links.integer_bandwidths()
    per_link, supply = integer * time.numerator, time.denominator * scale
    unlimited = min(LARGEST_CAPACITY, int(per_link.sum()) + supply * ranks)
    feeds = np.full(ranks, supply, dtype=np.int64)
    source = nodes
    src = np.concatenate([topology.links.src, np.full(ranks, source, dtype=np.int32)])
    dst = np.concatenate([topology.links.dst, np.arange(ranks, dtype=np.int32)])
    for rank in range(ranks):
        network = FlowNetwork(nodes + 1, src, dst, np.concatenate([per_link, feeds]))
        matrix = network.matrix()
        value, flow = max_flow(matrix, source, rank)
        if value < supply * ranks:
            inside = tuple(int(node) for node in sink_side(matrix, flow, rank))
            outside = ranks - sum(node < ranks for node in inside)
            found = Fraction(outside, ranks) / bandwidth_into(topology, inside)
            if found > best.value:
                return Bound("into", inside, found)
        feeds[rank] = unlimited
    return None


def _allreduce(topology: Topology, achieved: Fraction | None) -> Bound:
    ingress = _ingress(topology)
    ranks = topology.compute_count
    best = Bound("volume", (), Fraction(2 * (ranks - 1)) / sum(ingress, Fraction(0)))
    candidates: list[Callable[[], Bound]] = [
        lambda: _single_rank_crossing(topology, "across-in"),
        lambda: _single_rank_crossing(topology, "across-out"),
        lambda: _smallest_crossing(topology, "across-in"),
        lambda: _smallest_crossing(topology, "across-out"),
    ]
    for candidate in candidates:
        if achieved is not None and best.value >= achieved:
            break
        best = max(best, candidate(), key=lambda bound: bound.value)
    return best


def _oriented(topology: Topology, kind: str) -> Topology:
    return topology if kind == "across-in" else transpose_with_links(topology)[0]


def _single_rank_crossing(topology: Topology, kind: str) -> Bound:
    ingress = _ingress(_oriented(topology, kind))
    rank = min(range(len(ingress)), key=lambda candidate: ingress[candidate])
    return Bound(kind, (rank,), 1 / ingress[rank])


def _smallest_crossing(topology: Topology, kind: str) -> Bound:
    """Return the bound of the smallest cut that rank 0 sends across (theorem 16 takes any fixed rank)."""
    oriented = _oriented(topology, kind)
    integer, scale = oriented.links.integer_bandwidths()
    matrix = FlowNetwork(oriented.node_count, oriented.links.src, oriented.links.dst, integer).matrix()
    flows = ((max_flow(matrix, 0, rank), rank) for rank in range(1, oriented.compute_count))
    (value, flow), rank = min(flows, key=lambda item: item[0][0])
    inside = tuple(int(node) for node in sink_side(matrix, flow, rank))
    return Bound(kind, inside, Fraction(scale, value))
