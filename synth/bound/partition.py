"""Groups of ranks that are bottlenecks all at once: what makes reduce_scatter and allgather the best allreduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from chorale.synth.bound.cut_search import CutSearch, Nodes
from chorale.synth.bound.optimum import improving_cuts, integral_trees
from chorale.synth.flow.graph import Integers


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
        touched = [number for number in np.unique(self.of_rank[part[part < ranks]]).tolist() if number >= 0]
        union = np.unique(np.concatenate([part, *(self.nodes[number] for number in touched)]))
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

    One oracle call per rank behind a switch.
    """
    topology = search.topology
    ranks, links = topology.compute_count, topology.links
    behind = np.unique(links.dst[(links.src >= ranks) & (links.dst < ranks)])
    too_many = int(search.ingress.max()) + 1
    parts: list[Nodes] = []
    for rank in behind.tolist():
        search.settled[:ranks] = True
        search.settled[rank] = False
        part = search.violated_cut(Fraction(search.scale), too_many)
        if part is not None and len(part) > 1:
            parts.append(part)
    return parts


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
