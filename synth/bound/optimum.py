"""The optimum of collectives that spread trees: its time, its bottleneck, how many trees reach it.

allgather: max over node sets T of (N - |T|) / (bandwidth into T) per shard, counting ranks in T (bandwidth-optimal
pipeline, theorem 1). It is found by Newton's method over cuts: guess a time, ask the oracle for a cut that
cannot make it, and take the time of that cut. reduce_scatter is allgather on the transpose, broadcast is the
same with all shards at its root (appendix A), reduce is broadcast on the transpose.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from chorale.synth.bound.cut import Bound
from chorale.synth.bound.cut_search import CutSearch, Nodes
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.transpose import transpose

Direction = Literal["into", "out-of"]


@dataclass(frozen=True, slots=True)
class Optimum:
    """The least bandwidth time of a collective by k trees per shard, and the cut that allows no less.

    shards:              the vector of M bytes is cut into this many: N, or 1 for broadcast and reduce
    trees_per_bandwidth: U, so that a link of bandwidth b carries floor(U * b) trees; with capacities like that,
                         k trees can be packed for every shard, and with no smaller U
    k:                   trees per shard
    direction, cut:      all that has to get into (out of) these nodes, in ascending order, takes the whole time
    is_k_given:          k was asked for: the bound holds for schedules of k trees per shard, not for all

    Trees reach it on every network without switches, and with switches if each of them has at least as much
    floor(U * b) in as out (theorem 4; turned around for reduction): true of all bidirectional networks, and for
    unrestricted k of all Eulerian ones. Elsewhere it is a bound: trees as fast as that may not exist.
    """

    shards: int
    trees_per_bandwidth: Fraction
    k: int
    direction: Direction
    cut: tuple[int, ...]
    is_k_fixed: bool = False

    @property
    def time_per_shard(self) -> Fraction:
        """U / k, in 1 / bandwidth_unit; 1 / x* of the paper."""
        return self.trees_per_bandwidth / self.k

    @property
    def time_per_byte(self) -> Fraction:
        """T_B / M."""
        return self.time_per_shard / self.shards

    @property
    def bound(self) -> Bound:
        """The lower bound, which `check_certificate` can check."""
        return Bound(self.direction, self.cut, self.time_per_byte, self.k if self.is_k_fixed else None)

    def is_reached_by_trees(self, topology: Topology) -> bool:
        """Whether k trees per shard as fast as this are sure to exist on `topology`, by what the switches pass on."""
        links = topology.links
        trees = np.array([int(self.trees_per_bandwidth * width) for width in links.bandwidths], dtype=object)
        left = np.zeros(topology.node_count, dtype=object)
        sign = 1 if self.direction == "into" else -1
        np.add.at(left, links.dst, sign * trees[links.bandwidth_class])
        np.subtract.at(left, links.src, sign * trees[links.bandwidth_class])
        return bool(np.all(left[topology.compute_count :] >= 0))


def optimum(topology: Topology, collective: Collective) -> Optimum:
    """Return the optimum over all schedules, with the smallest k whose trees reach it. Few flows, mostly below N.

    Raises InvalidInput for collectives without one (allreduce, alltoall) and where amounts would leave 64 bits.
    """
    search = search_for(topology, collective)
    for time, cut in improving_cuts(search):
        best = time, cut
    time, cut = best
    trees_per_bandwidth, k = integral_trees(topology, time)
    return Optimum(
        shards_of_vector(topology, collective), trees_per_bandwidth, k, cut_direction(collective), node_set(cut)
    )


def search_for(topology: Topology, collective: Collective) -> CutSearch:
    """Return the search over the cuts of allgather or broadcast, on the transpose for reduce_scatter and reduce."""
    rooted = collective.is_rooted
    if not rooted and collective.name not in (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER):
        known = "allgather, reduce_scatter, broadcast and reduce"
        raise InvalidInput(f"trees have an exact optimum for {known}", collective.name, "choose one of them")
    weights = np.zeros(topology.compute_count, dtype=np.int64)
    if rooted:
        weights[_root(topology, collective)] = 1
    else:
        weights[:] = 1
    return CutSearch.of(topology if cut_direction(collective) == "into" else transpose(topology), weights)


def improving_cuts(search: CutSearch) -> Iterator[tuple[Fraction, Nodes]]:
    """Yield cuts with the time per shard that they prove, each larger than the last; the last is the optimum.

    Newton's method on rationals (Dinkelbach): mostly one to three cuts.
    """
    cut: Nodes | None = search.narrowest_rank()
    while cut is not None:
        time = search.time_per_shard(cut)
        yield time, cut
        cut = search.violated_cut(*integral_trees(search.topology, time))


def integral_trees(topology: Topology, time_per_shard: Fraction) -> tuple[Fraction, int]:
    """Return (U, k) with U / k = `time_per_shard` and the smallest k such that U * b is whole for every link.

    Bandwidth-optimal pipeline, proposition 3, for rational bandwidths.
    """
    bandwidths = topology.links.bandwidths
    scale = math.lcm(*(bandwidth.denominator for bandwidth in bandwidths))
    time = time_per_shard / scale
    units = [int(bandwidth * scale) for bandwidth in bandwidths]
    per_unit = Fraction(time.numerator, math.gcd(time.denominator, *units))
    return per_unit * scale, int(per_unit / time)


def cut_direction(collective: Collective) -> Direction:
    """Return which way data must cross a cut of the collective."""
    outward = (CollectiveName.REDUCE_SCATTER, CollectiveName.REDUCE)
    return "out-of" if collective.name in outward else "into"


def shards_of_vector(topology: Topology, collective: Collective) -> int:
    """Return how many shards the vector of the collective is cut into."""
    return 1 if collective.is_rooted else topology.compute_count


def node_set(cut: Nodes) -> tuple[int, ...]:
    """Return `cut` as plain integers."""
    return tuple(cut.tolist())


def _root(topology: Topology, collective: Collective) -> int:
    root = collective.root or 0
    if not 0 <= root < topology.compute_count:
        raise InvalidInput("a root must be a rank", root, f"choose from 0 to {topology.compute_count - 1}")
    return root
