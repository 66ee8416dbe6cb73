"""The optimum of collectives that spread along trees: its time, its bottleneck cut, and the trees that reach it.

Weights w say how many shards start at each rank, and all shards must reach all ranks. A set of nodes T with a rank
then needs at least w(outside T) / (bandwidth into T) time per shard, and the optimum is the maximum over all T
(bandwidth-optimal pipeline, theorem 1). allgather has weight 1 everywhere, broadcast only at its root (appendix A);
reduce_scatter and reduce are the same on the transpose. The maximum is found by Newton's method: guess a time, ask
the oracle for a cut that takes longer, continue with the time of that cut.

The smallest k: with k trees per shard and U = k * time, a link of bandwidth b carries floor(U * b) trees. Cuts that
need the whole time leave no room for rounding: U * b must be whole on each of their links, so k is a multiple of some
k0. The room of other cuts grows with k: multiples of k0 are tried in turn, and every cut that refuses one of them is
tested first for the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from heapq import heapify, heapreplace
from math import floor
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import (
    LARGEST_AMOUNT,
    Flags,
    Integers,
    ResidualGraph,
    amounts_on,
    residual_graph,
)
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.kernels import native
from chorale.synth.topology.automorphism import checked_orbits
from chorale.synth.topology.topology import Topology, transpose

_MANY_RANKS = 512
"""From this number of ranks on, symmetries are used, so that cuts around one rank of each orbit are enough."""

Nodes = NDArray[np.int64]
"""Node indices in ascending order: the sink side T of a cut."""


@dataclass(frozen=True, slots=True, eq=False)
class CutSearch:
    """A search over the cuts of a network for increasing times: ranks that have passed stay settled.

    Attributes:
        weights: int64 per node, shards that start there (0 for switches).
        units: int64 per link, bandwidth in units of 1 / `scale`.
        useful: links without self-loops.
        busiest: largest number of useful links into one node.
        ingress: int64 per node, bandwidth of its incoming links in units.
        settled: flags of ranks around which every cut is known to hold.
        typical: flags of ranks; known symmetries map one of them to any other rank.
    """

    topology: Topology
    weights: Integers
    units: Integers
    scale: int
    useful: Integers
    busiest: int
    ingress: Integers
    graph: ResidualGraph
    half_arcs: Integers
    settled: Flags
    typical: Flags

    @staticmethod
    def of(topology: Topology, weights: Integers) -> CutSearch:
        """Return a new search; weights: int64 per rank. O(links log links).

        Symmetries are used on large networks whose ranks all have the same weight.
        """
        links = topology.links
        units, scale = links.integer_bandwidths()
        useful = np.flatnonzero(links.src != links.dst)
        busiest = int(np.bincount(links.dst[useful]).max(initial=0))
        _require_small(int(units.max(initial=0)) * busiest, 0)
        ingress = np.zeros(topology.node_count, dtype=np.int64)
        np.add.at(ingress, links.dst[useful], units[useful])
        everywhere = np.zeros(topology.node_count, dtype=np.int64)
        everywhere[: topology.compute_count] = weights
        graph, half_arcs = residual_graph(topology.node_count, links.src[useful], links.dst[useful])
        settled = np.zeros(topology.node_count, dtype=np.bool_)
        # Flags of the first rank of every orbit of known symmetries (each checked), if weights are equal.
        typical = np.ones(topology.compute_count, dtype=np.bool_)
        if len(typical) >= _MANY_RANKS and topology.automorphisms and np.all(weights == weights[0]):
            typical[:] = False
            typical[np.unique(checked_orbits(topology)[: len(typical)], return_index=True)[1]] = True
        return CutSearch(
            topology, everywhere, units, scale, useful, busiest, ingress, graph, half_arcs, settled, typical
        )

    def narrowest_rank(self) -> Nodes:
        """Return the rank that needs the longest time to receive everything, as a cut. O(ranks log ranks)."""
        ranks = self.topology.compute_count
        weights, ingress = self.weights[:ranks], self.ingress[:ranks]
        total = int(weights.sum())
        narrowest: dict[int, int] = {}
        for rank in np.lexsort((ingress, weights)).tolist():
            if weights[rank] < total:
                narrowest.setdefault(int(weights[rank]), rank)
        for rank in narrowest.values():
            _require_reached(self.topology, int(ingress[rank]), rank)
        best = max(narrowest.values(), key=lambda rank: Fraction(total - int(weights[rank]), int(ingress[rank])))
        return np.array([best])

    def violated_cut(self, trees_per_bandwidth: Fraction, k: int, sinks: Flags | None = None) -> Nodes | None:
        """Return a cut around one of `sinks` that cannot carry k trees per unit of weight, or None if all cuts can.

        A link of bandwidth b carries floor(U * b) trees, U = `trees_per_bandwidth`. floor(U * b) / k must not decrease
        from call to call, because settled ranks are not tested again. The cut is the smallest one around its sink.
        O(links) and few flows. Raises InvalidInput if amounts would exceed 64 bits.

        sinks: flags per rank; None for all ranks
        """
        links = self.topology.links
        table = [int(trees_per_bandwidth * bandwidth) for bandwidth in links.bandwidths]
        _require_small(max(table, default=0) * self.busiest, k * int(self.weights.sum()))
        amounts = np.array(table, dtype=np.int64)[links.bandwidth_class[self.useful]]
        capacity = amounts_on(self.graph, self.half_arcs, amounts)
        is_sink = np.zeros(self.topology.node_count, dtype=np.bool_)
        is_sink[: self.topology.compute_count] = True if sinks is None else sinks
        cuts = np.zeros((1, self.topology.node_count), dtype=np.bool_)
        found = native.violated_cuts(self.graph, capacity, self.weights * k, is_sink, self.settled, cuts)
        return np.flatnonzero(cuts[0]) if found else None

    def outside_weight(self, cut: Nodes) -> int:
        """Return the number of shards that start outside `cut`."""
        return int(self.weights.sum() - self.weights[cut].sum())

    def entering(self, cut: Nodes) -> list[tuple[Fraction, int]]:
        """Return (bandwidth, number of links) of the links that lead into `cut`. O(links)."""
        links = self.topology.links
        inside = np.zeros(self.topology.node_count, dtype=np.bool_)
        inside[cut] = True
        classes = links.bandwidth_class[inside[links.dst] & ~inside[links.src]]
        counts = np.bincount(classes, minlength=len(links.bandwidths)).tolist()
        present = [(bandwidth, count) for bandwidth, count in zip(links.bandwidths, counts, strict=True) if count]
        _require_reached(self.topology, len(present), int(cut[0]))
        return present

    def time_per_shard(self, cut: Nodes) -> Fraction:
        """Return the time that `cut` proves: the shards outside over the bandwidth into it. O(links)."""
        bandwidth = sum((value * count for value, count in self.entering(cut)), Fraction(0))
        return self.outside_weight(cut) / bandwidth


def _require_small(busiest: int, supply: int) -> None:
    if max(busiest, supply) >= LARGEST_AMOUNT:
        rule = f"exact bounds count trees in integers below 2^{LARGEST_AMOUNT.bit_length() - 1}"
        value = f"{busiest} into one node" if busiest >= supply else f"{supply} in all"
        raise InvalidInput(rule, value, "round the bandwidths to fewer digits, or choose a small fixed k")


def _require_reached(topology: Topology, bandwidth: int, node: int) -> None:
    if bandwidth == 0:
        name = topology.node_ids[node]
        raise InvalidInput("the network is not connected: {}", f"no link leads to {name}", "add links")


MAX_MULTIPLES = 4096
MAX_ORACLE_CALLS = 128


@dataclass(frozen=True, slots=True)
class FewestTrees:
    """k trees per shard reach the time. is_proven: no smaller k does with trees that are guaranteed to exist."""

    k: int
    is_proven: bool


@dataclass(frozen=True, slots=True)
class _CutRoom:
    """A cut: shards outside, and (bandwidth, number of links) into it."""

    outside: int
    entering: tuple[tuple[Fraction, int], ...]

    def carries(self, trees_per_bandwidth: Fraction, k: int) -> bool:
        room = sum(count * floor(trees_per_bandwidth * width) for width, count in self.entering)
        return room >= k * self.outside


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


def fewest_trees(search: CutSearch, time_per_shard: Fraction, cut: Nodes) -> FewestTrees:
    """Return the smallest k that reaches the optimum `time_per_shard`, which `cut` proves.

    If switches receive as much as they send with whole U * b on all links, they must also do so with k, so that trees
    are guaranteed to exist. After `MAX_MULTIPLES` multiples, or `MAX_ORACLE_CALLS` that only the oracle refused, the
    next doubling that holds is used without proof. Usually k0 makes all links whole, without calling the oracle.
    """
    _, enough = integral_trees(search.topology, time_per_shard)
    step = _needed(search, time_per_shard, cut)
    is_balanced = _switches_pass_on(search.topology, enough * time_per_shard)
    known = [_known(search, cut)]
    k, calls = step, 0
    while k < enough and k < step * MAX_MULTIPLES and calls < MAX_ORACLE_CALLS:
        rate = k * time_per_shard
        if all(other.carries(rate, k) for other in known) and (
            not is_balanced or _switches_pass_on(search.topology, rate)
        ):
            calls += 1
            refusing = _refusing(search, rate, k)
            if refusing is None:
                return FewestTrees(k, True)
            known.append(_known(search, refusing))
            if search.time_per_shard(refusing) == time_per_shard:
                step = math.lcm(step, _needed(search, time_per_shard, refusing))
        k = (k // step + 1) * step
    return FewestTrees(enough, True) if k >= enough else _by_doubling(search, time_per_shard, k, enough, is_balanced)


def _by_doubling(search: CutSearch, time: Fraction, k: int, enough: int, is_balanced: bool) -> FewestTrees:
    while k < enough:
        rate = k * time
        if (not is_balanced or _switches_pass_on(search.topology, rate)) and _refusing(search, rate, k) is None:
            return FewestTrees(k, False)
        k *= 2
    return FewestTrees(enough, False)


def _refusing(search: CutSearch, rate: Fraction, k: int) -> Nodes | None:
    """Return a cut that does not carry k trees per shard; the ranks of all orbits are tested again."""
    search.settled[:] = False
    return search.violated_cut(rate, k, search.typical)


def _needed(search: CutSearch, time: Fraction, cut: Nodes) -> int:
    """Return the smallest k with k * time * b whole on every link into `cut`."""
    return math.lcm(*((time * width).denominator for width, _ in search.entering(cut)))


def _known(search: CutSearch, cut: Nodes) -> _CutRoom:
    return _CutRoom(search.outside_weight(cut), tuple(search.entering(cut)))


def _switches_pass_on(topology: Topology, trees_per_bandwidth: Fraction) -> bool:
    """Return whether every switch receives at least as many trees as it may send, so that it can be removed."""
    if not topology.switch_count:
        return True
    links = topology.links
    trees = np.array([floor(trees_per_bandwidth * width) for width in links.bandwidths], dtype=object)
    left = np.zeros(topology.node_count, dtype=object)
    np.add.at(left, links.dst, trees[links.bandwidth_class])
    np.subtract.at(left, links.src, trees[links.bandwidth_class])
    return bool(np.all(left[topology.compute_count :] >= 0))


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound on T_B / M (in 1 / bandwidth_unit) with the node sets that prove it.

    Attributes:
        kind: how the bound is proved.
            "into", "out-of": data that must enter (leave) `nodes`, divided by the bandwidth of the links there.
            "received", "sent": p groups of ranks receive (send) 2 (p - 1) M in an allreduce, divided by the sum of the
            bandwidths into (out of) them. The groups are `parts`, which may contain switches, and every other rank.
            "alltoall-prices": data from rank to rank pay at least the distance by `prices`, one per link, and a link
            earns at most its price times its bandwidth.
            "cuts-into", "cuts-out-of": the cuts `parts`, weighted by `prices`. A link pays for each cut that it enters
            (leaves); what a switch that cannot copy (add) receives pays for what it sends, by `worth`.
        k: the bound holds for schedules of k trees per shard; None: for all schedules.
        in_network: the bound holds if switches multicast and add; otherwise for copies and sums at ranks.
    """

    kind: str
    nodes: tuple[int, ...]
    value: Fraction
    k: int | None = None
    parts: tuple[tuple[int, ...], ...] = ()
    in_network: bool = False
    prices: tuple[int, ...] = ()
    worth: tuple[tuple[int, int], ...] = ()

    def to_json(self, topology: Topology) -> Mapping[str, Any]:
        """Return the bound as a JSON document, with nodes by id."""
        document: dict[str, Any] = {"kind": self.kind, "nodes": self._names(topology, self.nodes)}
        if self.kind in ("received", "sent"):
            document["parts"] = [self._names(topology, part) for part in self.parts]
        if self.k is not None:
            document["k"] = self.k
        if self.in_network:
            document["in_network"] = True
        if self.kind in ("cuts-into", "cuts-out-of"):
            part = "gather" if self.kind == "cuts-into" else "reduce"
            weighted = zip(self.parts, self.prices, strict=True)
            document[f"{part}_cuts"] = [{"nodes": self._names(topology, cut), "weight": str(w)} for cut, w in weighted]
            document[f"{part}_switches"] = {topology.node_ids[node]: str(value) for node, value in self.worth}
        elif self.prices:
            document["prices"] = list(self.prices)
            document["rate_upper"] = str(1 / (self.value * topology.compute_count))
        if topology.is_guessed(self._crossing(topology)):
            document["under"] = "assumptions"
        return document | {"time_per_byte": str(self.value)}

    def _crossing(self, topology: Topology) -> NDArray[np.bool_] | None:
        """Return which links the bound counts, bool[links], or None for all."""
        groups = [self.nodes] if self.kind in ("into", "out-of") else self.parts
        known = topology.provenance
        if known is None or not known.guessed or self.kind not in ("into", "out-of", "received", "sent"):
            return None
        group_of = np.full(topology.node_count, -1)
        for number, group in enumerate(groups):
            group_of[list(group)] = number
        if self.kind in ("received", "sent"):  # each rank outside all groups is a separate group
            alone = np.flatnonzero(group_of[: topology.compute_count] < 0)
            group_of[alone] = len(groups) + alone
        near, far = topology.links.dst, topology.links.src
        if self.kind in ("out-of", "sent"):
            near, far = far, near
        crossing: NDArray[np.bool_] = (group_of[near] >= 0) & (group_of[near] != group_of[far])
        return crossing

    @staticmethod
    def _names(topology: Topology, nodes: tuple[int, ...]) -> list[str]:
        return [topology.node_ids[node] for node in nodes]


Direction = Literal["into", "out-of"]


@dataclass(frozen=True, slots=True)
class Optimum:
    """The least bandwidth time of a collective by k trees per shard, and the cut that proves it.

    Trees reach it on every network without switches, and with switches if each has at least as much floor(U * b) in as
    out (theorem 4; the reverse for reductions): on all bidirectional networks, and for unrestricted k on all Eulerian
    networks. Elsewhere it is a bound, and such trees may not exist.

    Attributes:
        shards: number of shards of the vector: N, or 1 for broadcast and reduce.
        trees_per_bandwidth: U, the smallest value for which k trees per shard can be packed if a link of bandwidth b
            carries floor(U * b) trees.
        k: trees per shard.
        direction, cut: moving everything into (out of) these nodes, in ascending order, takes the whole time.
        is_k_fixed: k was requested: the bound holds for schedules of k trees per shard, not for all.
        is_fewest: no smaller k reaches the time with trees that are guaranteed to exist. False: the search for a
            smaller k was given up, or k was requested.
        least_time: time per shard that the cut proves, if k trees per shard take longer (`optima`); else None.
    """

    shards: int
    trees_per_bandwidth: Fraction
    k: int
    direction: Direction
    cut: tuple[int, ...]
    is_k_fixed: bool = False
    is_fewest: bool = False
    least_time: Fraction | None = None

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
        proven = self.least_time or self.time_per_shard
        return Bound(self.direction, self.cut, proven / self.shards, self.k if self.is_k_fixed else None)

    def is_reached_by_trees(self, topology: Topology) -> bool:
        """Return whether such trees are guaranteed to exist on `topology`, by what its switches receive and send."""
        inward = topology if self.direction == "into" else transpose(topology)
        return _switches_pass_on(inward, self.trees_per_bandwidth)


def optimum(topology: Topology, collective: Collective) -> Optimum:
    """Return the optimum over all schedules, with the smallest k whose trees reach it. Few flows, mostly below N.

    The search for the smallest k may be given up (see `is_fewest`). Raises InvalidInput for allreduce and alltoall, and
    if amounts would exceed 64 bits.
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
        raise InvalidInput(
            f"the optimum of trees is computed for {known}, not for {{}}", collective.name, "choose one of them"
        )
    root = (collective.root or 0) if rooted else 0
    if not 0 <= root < topology.compute_count:
        raise InvalidInput("the root {} is not a rank", root, f"choose from 0 to {topology.compute_count - 1}")
    weights = np.zeros(topology.compute_count, dtype=np.int64)
    weights[root if rooted else slice(None)] = 1
    return CutSearch.of(topology if cut_direction(collective) == "into" else transpose(topology), weights)


def improving_cuts(search: CutSearch) -> Iterator[tuple[Fraction, Nodes]]:
    """Yield cuts with the time per shard that they prove, in increasing order; the last one is the optimum.

    Newton's method on rationals (Dinkelbach): mostly one to three cuts. Symmetries map the cuts around a rank to
    those around its image, so one rank of each orbit is enough.
    """
    cut: Nodes | None = search.narrowest_rank()
    while cut is not None:
        time = search.time_per_shard(cut)
        yield time, cut
        cut = search.violated_cut(*integral_trees(search.topology, time), search.typical)


def cut_direction(collective: Collective) -> Direction:
    """Return the direction in which data of the collective must cross a cut."""
    outward = (CollectiveName.REDUCE_SCATTER, CollectiveName.REDUCE)
    return "out-of" if collective.name in outward else "into"


def shards_of_vector(topology: Topology, collective: Collective) -> int:
    """Return the number of shards of the collective's vector."""
    return 1 if collective.is_rooted else topology.compute_count


def node_set(cut: Nodes) -> tuple[int, ...]:
    """Return `cut` as Python integers."""
    return tuple(cut.tolist())


def fixed_k_optimum(topology: Topology, collective: Collective, k: int) -> Optimum:
    """Return the smallest U such that links of floor(U * b) trees carry k trees per shard, with the cut that it fills.

    Within 1 / (k * smallest bandwidth) of `optimum` in time per shard (bandwidth-optimal pipeline, theorems 13 to
    15). Parallel links are rounded down one by one. Each cut that fails gives the next U to try, the smallest one at
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

    Rounding down removes at most one tree per link; U grows until enough links carry one more. O(d log d) for d links.
    """
    entering = search.entering(cut)
    need = search.outside_weight(cut) * k
    rate = need / sum((value * count for value, count in entering), Fraction(0))
    missing = need - sum(count * floor(rate * value) for value, count in entering)
    upcoming = [((floor(rate * value) + 1) / value, value, count) for value, count in entering]
    heapify(upcoming)
    while missing > 0:
        rate, value, count = upcoming[0]
        missing -= count
        heapreplace(upcoming, (rate + 1 / value, value, count))
    return rate


FEW_TREES = 96
"""Up to this number of trees per root, the exact optimum is used, whatever gap is accepted."""

COARSE_K = (1, 2, 3, 4, 6, 8, 11, 16, 22, 32, 45, 64, 91, 128, 181, 256, 512, 1024, 2048, 4096)
"""Average numbers of trees per root to try if roots have different numbers of trees."""

_EVERY_K = 512
_MOST_TREES = 2**20


def close_rates(
    search: CutSearch, time_per_shard: Fraction, cut: Nodes, gap: Fraction
) -> Iterator[tuple[Fraction, int]]:
    """Yield (U, k), k ascending, with which trees take at most `gap` longer than the optimum `time_per_shard`.

    `cut` proves the optimum. U is the smallest value at which links of floor(U * b) trees carry k trees per shard.
    Measured bandwidths have large denominators, so that the exact optimum would take millions of trees. Every k up to
    512 is tried, then k in steps of 5 %; most are ruled out by cuts that refused another k.
    """
    known, limit, k = [cut], time_per_shard * (1 + gap), 0
    is_balanced = _switches_pass_on(search.topology, integral_trees(search.topology, time_per_shard)[0])
    while (k := k + max(1, (k - _EVERY_K) // 20)) <= _MOST_TREES:
        if not all(_known(search, each).carries(limit * k, k) for each in known):
            continue
        rate = max(smallest_rate(search, each, k) for each in known)
        search.settled[:] = False
        while rate <= limit * k:
            refusing = search.violated_cut(rate, k, search.typical)
            if refusing is None:
                if not is_balanced or _switches_pass_on(search.topology, rate):
                    yield rate, k
                break
            known.append(refusing)
            rate = max(rate, smallest_rate(search, refusing, k))


def optima(
    topology: Topology, collective: Collective, gap: Fraction, preferred_k: int | None = None
) -> Iterator[Optimum]:
    """Yield optima for numbers of trees that take at most `gap` longer, the fewest trees first, the exact one last.

    Yields only the exact one if it takes at most `FEW_TREES`. preferred_k: comes first if it is as close
    """
    exact = optimum(topology, collective)
    if exact.k > FEW_TREES and gap > 0:
        search, cut = search_for(topology, collective), np.array(exact.cut)
        if preferred_k is not None and preferred_k < exact.k:
            preferred = fixed_k_optimum(topology, collective, preferred_k)
            if preferred.time_per_shard <= exact.time_per_shard * (1 + gap):
                yield replace(preferred, is_k_fixed=False, cut=exact.cut, least_time=exact.time_per_shard)
        for rate, k in close_rates(search, exact.time_per_shard, cut, gap):
            if k >= exact.k:
                break
            yield replace(exact, trees_per_bandwidth=rate, k=k, is_fewest=False, least_time=exact.time_per_shard)
    yield exact
