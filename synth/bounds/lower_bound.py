"""Lower bounds on the bandwidth time of all collectives, exact and with certificates; allreduce has several.

Whatever the schedule, an allreduce sends the whole vector across every cut, each way (bandwidth-optimal pipeline,
theorem 16), and p groups of ranks receive 2 (p - 1) vectors in all (theorem 17 for single ranks). Where the groups are
bottlenecks of allgather, the second bound is twice the time of allgather, so that reduce_scatter followed by allgather
is the best allreduce (theorem 19 has the cases of two groups and of single ranks).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from chorale.synth.bounds.cut_search import CutSearch, Nodes
from chorale.synth.bounds.fewest_trees import integral_trees
from chorale.synth.bounds.optimum import (
    Bound,
    cut_direction,
    improving_cuts,
    node_set,
    optimum,
    search_for,
    shards_of_vector,
)
from chorale.synth.bounds.residual_graph import Integers
from chorale.synth.collective import ALLGATHER, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.distinct import distinct
from chorale.synth.topology.automorphism import connected_labels
from chorale.synth.topology.distance import distances_to
from chorale.synth.topology.topology import Topology


def tight_parts(search: CutSearch) -> list[Nodes]:
    """Return bottlenecks of allgather that share no rank, as small as they come, over as many ranks as possible.

    A set T is tight if what has to come in takes as long as the whole allgather. Tight sets that share a rank have
    a tight union, if that leaves out a rank. One oracle call per set that is no single rank.
    """
    *_, (time, _) = improving_cuts(search)
    trees_per_bandwidth, k = integral_trees(search.topology, time)
    ranks = search.topology.compute_count
    covered = search.ingress[:ranks] == (ranks - 1) * search.scale / time
    search.settled[:] = False
    groups = _Groups({}, np.full(ranks, -1))
    # With this many times the trees, one more per shard is too many for tight cuts and for no others.
    slack = ranks
    while (part := search.violated_cut(trees_per_bandwidth * slack, k * slack + 1, ~covered)) is not None:
        for image in _images(search, part):
            groups.join(image)
            covered[image[image < ranks]] = True
    return list(groups.nodes.values())


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """Sets of nodes that share no rank, by number, and int64 per rank: the set it is in, or -1."""

    nodes: dict[int, Nodes]
    of_rank: Integers

    def join(self, part: Nodes) -> None:
        """Add `part`, joined with the sets that share a rank with it, unless that would leave no rank outside."""
        ranks = len(self.of_rank)
        touched = [number for number in distinct(self.of_rank[part[part < ranks]]).tolist() if number >= 0]
        union = distinct(np.concatenate([part, *(self.nodes[number] for number in touched)]))
        inside = union[union < ranks]
        if len(inside) < ranks:
            for number in touched:
                del self.nodes[number]
            self.of_rank[inside] = int(inside[0])
            self.nodes[int(inside[0])] = union


def _images(search: CutSearch, part: Nodes) -> list[Nodes]:
    """Return `part` and the sets that known symmetries take it to, as far as they share no ranks.

    Nothing is proved by symmetry: what sets of nodes prove is counted on their links. It saves oracle calls.
    """
    ranks = search.topology.compute_count
    taken = np.zeros(ranks, dtype=np.bool_)
    images: list[Nodes] = []
    waiting = [part]
    while waiting:
        image = waiting.pop()
        inside = image[image < ranks]
        if taken[inside].any():
            continue
        taken[inside] = True
        images.append(image)
        waiting += [np.sort(generator[image]).astype(np.int64) for generator in search.topology.automorphisms]
    return images


def single_rank_cuts(search: CutSearch) -> list[Nodes]:
    """Return a rank and the switches around it with the least bandwidth into them, for ranks where switches help.

    One oracle call per rank behind a switch that no known symmetry takes an earlier one to.
    """
    topology = search.topology
    ranks, links = topology.compute_count, topology.links
    behind = distinct(links.dst[(links.src >= ranks) & (links.dst < ranks)]).tolist()
    too_many = int(search.ingress.max()) + 1
    parts: dict[int, Nodes] = {}
    for rank in behind:
        if rank not in parts:
            search.settled[:ranks] = True
            search.settled[rank] = False
            part = search.violated_cut(Fraction(search.scale), too_many)
            # The smallest such cut goes to the smallest one around the image of its rank, which comes before switches.
            parts |= {int(image[0]): image for image in _images(search, np.array([rank]) if part is None else part)}
    return [parts[rank] for rank in behind if len(parts[rank]) > 1]


def group_time(search: CutSearch, parts: Sequence[Nodes]) -> Fraction:
    """Return the time per byte of allreduce that `parts`, and all other ranks by themselves, prove.

    p groups of ranks receive 2 (p - 1) M in all: contract each to one process (bandwidth-optimal pipeline, theorem
    17, is the case of single ranks; theorem 16 of two groups, in Eulerian networks). O(links * parts).
    """
    ranks = search.topology.compute_count
    single = np.ones(ranks, dtype=np.bool_)
    total = Fraction(0)
    for part in parts:
        single[part[part < ranks]] = False
        total += sum((value * count for value, count in search.entering(part)), Fraction(0))
    total += Fraction(int(search.ingress[:ranks][single].sum()), search.scale)
    groups = len(parts) + int(single.sum())
    return Fraction(2 * (groups - 1)) / total


_DIRECTIONS = (
    ("received", "into", ALLGATHER, CollectiveName.BROADCAST),
    ("sent", "out-of", REDUCE_SCATTER, CollectiveName.REDUCE),
)


def allreduce_bounds(topology: Topology) -> Iterator[Bound]:
    """Yield bounds on allreduce, the cheapest first; the largest is the best one known.

    Ranks by themselves; groups that are bottlenecks of allgather; single cuts; ranks with the switches that
    narrow them. Each for what comes in and, on one-way networks, also for what goes out.
    """
    directions = _DIRECTIONS[:1] if topology.is_eulerian else _DIRECTIONS
    searches = [(kind, search_for(topology, spread)) for kind, _, spread, _ in directions]
    yield from (_of_groups(kind, search, []) for kind, search in searches)
    yield from (_of_groups(kind, search, tight_parts(search)) for kind, search in searches)
    for _, kind, _, rooted in directions:
        for time, cut in improving_cuts(search_for(topology, Collective(rooted, 0))):
            yield Bound(kind, node_set(cut), time)
    yield from (_of_groups(kind, search, single_rank_cuts(search)) for kind, search in searches)


def reduce_scatter_allgather_time(topology: Topology) -> Fraction:
    """Return the time per byte of the best reduce_scatter followed by the best allgather."""
    gather = optimum(topology, ALLGATHER).time_per_byte
    return 2 * gather if topology.is_eulerian else gather + optimum(topology, REDUCE_SCATTER).time_per_byte


def _of_groups(kind: str, search: CutSearch, parts: Sequence[Nodes]) -> Bound:
    return Bound(kind, (), group_time(search, parts), parts=tuple(node_set(part) for part in parts))


def lower_bound(topology: Topology, collective: Collective, achieved: Fraction | None = None) -> Bound:
    """Return the best bound this package knows on T_B / M of `collective`, for any schedule.

    It is the optimum of allgather, reduce_scatter, broadcast and reduce (see `Optimum` for what that means on
    one-way networks), and a bound for allreduce and alltoall. With `achieved`, the time of a verified schedule,
    the search ends as soon as a bound meets it: nothing can be better. No flows if single ranks already decide.

    >>> from synth import parse_collective, parse_topology
    >>> str(lower_bound(parse_topology("ring:4"), parse_collective("allreduce")).value)
    '3/4'
    """
    best: Bound | None = None
    for bound in _bounds(topology, collective):
        if best is None or bound.value > best.value:
            best = bound
        if achieved is not None and best.value >= achieved:
            break
    if best is None:
        raise AssertionError("every collective has at least one bound")
    return best


def _bounds(topology: Topology, collective: Collective) -> Iterator[Bound]:
    if collective.name == CollectiveName.ALLREDUCE:
        yield from allreduce_bounds(topology)
    elif collective.name == CollectiveName.ALLTOALL:
        yield from _alltoall_bounds(topology)
    else:
        parts = shards_of_vector(topology, collective)
        for time, cut in improving_cuts(search_for(topology, collective)):
            yield Bound(cut_direction(collective), node_set(cut), time / parts)


MAX_PRICED_CELLS = 2**18
"""Ranks times links up to which an all-to-all is bounded by hops, too: its checker, plain Python, takes a second."""


def _alltoall_bounds(topology: Topology) -> Iterator[Bound]:
    """Yield what single ranks, bottlenecks of allgather and boxes must exchange, and what hops and bandwidths allow.

    A box is what links wider than others join. chorale.synth.methods.alltoall finds prices of links that prove more.
    """
    for spread in (ALLGATHER, REDUCE_SCATTER):
        search = search_for(topology, spread)
        for _, cut in improving_cuts(search):
            yield Bound(cut_direction(spread), node_set(cut), _exchange_time(search, cut))
        yield from (Bound(cut_direction(spread), node_set(box), _exchange_time(search, box)) for box in _boxes(search))
    if topology.compute_count * len(topology.links) <= MAX_PRICED_CELLS:
        yield _by_hops(topology)


def _boxes(search: CutSearch) -> Iterator[Nodes]:
    """Yield, for each bandwidth, the nodes joined by wider links that take longest for their exchange with others."""
    nodes, ranks, links = search.topology.node_count, search.topology.compute_count, search.topology.links
    rates = np.array([float(each) for each in links.bandwidths])[links.bandwidth_class]
    for bandwidth in sorted(links.bandwidths)[:-1]:
        wide = np.array([each > bandwidth for each in links.bandwidths])[links.bandwidth_class]
        labels = connected_labels(nodes, links.src[wide], links.dst[wide])
        crosses = labels[links.src] != labels[links.dst]
        entering = np.bincount(labels[links.dst[crosses]], rates[crosses], minlength=nodes)
        inside = np.bincount(labels[:ranks], minlength=nodes)
        seconds = inside * (ranks - inside) / np.maximum(entering, rates.min())
        if seconds.any():  # rounded, to choose by: what is yielded is counted exactly
            yield np.flatnonzero(labels == int(np.argmax(seconds)))


def _by_hops(topology: Topology) -> Bound:
    """Return the bound by a price of 1 for every link: all data cross as many links as there are hops, at least."""
    ranks = topology.compute_count
    hops = int(distances_to(topology, np.arange(ranks))[:, :ranks].sum(dtype=np.int64))
    integers, scale = topology.links.integer_bandwidths()
    time = Fraction(hops * scale, int(integers.sum()) * ranks)
    return Bound("alltoall-prices", (), time, prices=(1,) * len(topology.links))


def _exchange_time(search: CutSearch, cut: Nodes) -> Fraction:
    """Return the time per byte that each of the ranks inside takes to hear from each outside."""
    ranks = search.topology.compute_count
    inside = int(np.count_nonzero(cut < ranks))
    return inside * search.time_per_shard(cut) / ranks
