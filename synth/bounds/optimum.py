"""The optimum of collectives that spread trees: its time, its bottleneck cut, and the trees that reach it.

allgather: max over node sets T of (N - |T|) / (bandwidth into T) per shard, counting ranks in T (bandwidth-optimal
pipeline, theorem 1), by Newton's method over cuts: guess a time, ask the oracle for a cut that cannot make it, take the
time of that cut. reduce_scatter is allgather on the transpose, broadcast is the same with all shards at its root
(appendix A), reduce is broadcast on the transpose.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Any, Literal

import numpy as np

from chorale.synth.bounds.cut_search import CutSearch, Nodes
from chorale.synth.bounds.fewest_trees import fewest_trees, integral_trees
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology, transpose


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound on T_B / M (in 1 / bandwidth_unit) with the node sets that prove it.

    kind "into", "out-of": what the collective has to move into (out of) `nodes`, over the bandwidth that leads there.
    kind "received", "sent": allreduce makes p groups of ranks receive (send) 2 (p - 1) M in all, over the sum of the
        bandwidths into (out of) them. The groups are `parts`, which may hold switches too, and besides
        every rank that is in none of them by itself.
    kind "alltoall-prices": what goes from rank to rank pays at least the distance by `prices`, one per link, and a link
        earns at most its price times its bandwidth.
    k: the bound holds for schedules of k trees per shard; None: for all schedules.
    in_network: it holds where switches multicast and add as they can; else for copies and sums at ranks.
    """

    kind: str
    nodes: tuple[int, ...]
    value: Fraction
    k: int | None = None
    parts: tuple[tuple[int, ...], ...] = ()
    in_network: bool = False
    prices: tuple[int, ...] = ()

    def to_json(self, topology: Topology) -> Mapping[str, Any]:
        """Return the JSON-able form, nodes by id."""
        document: dict[str, Any] = {"kind": self.kind, "nodes": self._names(topology, self.nodes)}
        if self.kind in ("received", "sent"):
            document["parts"] = [self._names(topology, part) for part in self.parts]
        if self.k is not None:
            document["k"] = self.k
        if self.in_network:
            document["in_network"] = True
        if self.prices:
            document["prices"] = list(self.prices)
            document["rate_upper"] = str(1 / (self.value * topology.compute_count))
        return document | {"time_per_byte": str(self.value)}

    @staticmethod
    def _names(topology: Topology, nodes: tuple[int, ...]) -> list[str]:
        return [topology.node_ids[node] for node in nodes]


Direction = Literal["into", "out-of"]


@dataclass(frozen=True, slots=True)
class Optimum:
    """The least bandwidth time of a collective by k trees per shard, and the cut that allows no less.

    shards:              the vector of M bytes is cut into this many: N, or 1 for broadcast and reduce
    trees_per_bandwidth: U, so that a link of bandwidth b carries floor(U * b) trees; with capacities like that,
                         k trees can be packed for every shard, and with no smaller U
    k:                   trees per shard
    direction, cut:      all that has to get into (out of) these nodes, in ascending order, takes the whole time
    is_k_fixed:          k was requested: the bound holds for schedules of k trees per shard, not for all
    is_fewest:           no smaller k reaches the time by trees that are sure to exist; False: the search for a smaller
                         one was given up, or k was requested

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
    is_fewest: bool = False

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

    Raises InvalidInput for collectives without one (allreduce, alltoall) and where amounts would leave 64 bits. The
    search for the smallest k may be given up (`fewest_trees`), which `is_fewest` says.
    """
    search = search_for(topology, collective)
    for time, cut in improving_cuts(search):
        best = time, cut
    time, cut = best
    fewest = fewest_trees(search, time, cut)
    return Optimum(
        shards_of_vector(topology, collective), fewest.k * time, fewest.k, cut_direction(collective), node_set(cut),
        is_fewest=fewest.is_proven,
    )  # fmt: skip


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

    Newton's method on rationals (Dinkelbach): mostly one to three cuts. A symmetry takes the cuts around a rank to
    those around its image, so that one rank of each orbit of known symmetries is asked about.
    """
    cut: Nodes | None = search.narrowest_rank()
    while cut is not None:
        time = search.time_per_shard(cut)
        yield time, cut
        cut = search.violated_cut(*integral_trees(search.topology, time), search.typical)


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


def fixed_k_optimum(topology: Topology, collective: Collective, k: int) -> Optimum:
    """Return the smallest U such that links of floor(U * b) trees can carry k trees per shard, with the cut it fills.

    Within 1 / (k * smallest bandwidth) of `optimum` in time per shard (bandwidth-optimal pipeline, theorems 13 to
    15). floor counts for each of parallel links. Each cut that fails gives the next U to try: the smallest one at
    which it holds. Raises InvalidInput for k < 1, and as `optimum` does.
    """
    if k < 1:
        raise InvalidInput("there must be at least one tree per shard", f"k = {k}", "choose k >= 1")
    search = search_for(topology, collective)
    failed: Nodes | None = search.narrowest_rank()
    while failed is not None:
        cut = failed
        trees_per_bandwidth = smallest_rate(search, cut, k)
        failed = search.violated_cut(trees_per_bandwidth, k, search.typical)
    return Optimum(
        shards_of_vector(topology, collective), trees_per_bandwidth, k, cut_direction(collective), node_set(cut), True
    )


def smallest_rate(search: CutSearch, cut: Nodes, k: int) -> Fraction:
    """Return the smallest U at which floor(U * b), summed over the links into `cut`, covers the trees from outside.

    It is a whole number of trees on some link, U = m / b; for each b, m lies in a short range that is bisected.
    O(d^2 log d) for d different bandwidths.
    """
    entering = search.entering(cut)
    need = search.outside_weight(cut) * k
    links = sum(count for _, count in entering)
    bandwidth = sum((value * count for value, count in entering), Fraction(0))

    def carried(rate: Fraction) -> int:
        return sum(count * floor(rate * value) for value, count in entering)

    def smallest_multiple(value: Fraction) -> Fraction:
        trees = range(ceil(value * need / bandwidth), ceil(value * (need + links) / bandwidth) + 1)
        place = bisect_left(trees, need, key=lambda whole: carried(whole / value))
        return trees[min(place, len(trees) - 1)] / value

    rates = [smallest_multiple(value) for value, _ in entering]
    return min(rate for rate in rates if carried(rate) >= need)
