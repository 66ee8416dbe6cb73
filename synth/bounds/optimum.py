"""The optimum of collectives that spread trees: its time, its bottleneck cut, and the trees that reach it.

allgather: max over node sets T of (N - |T|) / (bandwidth into T) per shard, counting ranks in T (bandwidth-optimal
pipeline, theorem 1), by Newton's method over cuts: guess a time, ask the oracle for a cut that cannot make it, take
the time of that cut. reduce_scatter is allgather on the transpose, broadcast is the same with all shards at its root
(appendix A), reduce is broadcast on the transpose.

Every bound here has one form: weights w on the ranks say how many shards start there, and all shards must reach all
ranks. A set of nodes T then needs at least w(outside T) / (bandwidth into T) time per shard, if it holds a rank.
allgather has weight 1 everywhere, a broadcast has it at its root only.

The smallest k: with k trees per shard and U = k * time, a link of bandwidth b carries floor(U * b) trees. Cuts that
take the whole time have no room for rounding: U * b must be whole on each of their links, so that k is a multiple of
some k0. All other cuts have room that grows with k: multiples of k0 are tried in turn, and every cut that refuses one
of them is asked first about the next.
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
"""From so many ranks on it pays to look at symmetries, so that cuts around one rank of each orbit are enough."""

Nodes = NDArray[np.int64]
"""Node indices in ascending order: the sink side T of a cut."""


@dataclass(frozen=True, slots=True, eq=False)
class CutSearch:
    """One search over the cuts of a network, for times that only grow: ranks that have passed stay settled.

    weights: int64 per node, shards that start there (0 for switches);  ingress: int64 per node, in units
    units:   int64 per link, bandwidth in units of 1 / scale;  useful: links that are no self-loops
    busiest: the largest number of useful links into one node
    settled: ranks around which every cut is known to hold
    typical: flags of ranks such that known symmetries take one of them to any other rank
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
        """Return a search that has settled nothing yet. `weights` per rank. O(links log links).

        Symmetries are looked at on large networks whose ranks all have the same weight.
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
        """Return the rank that must receive most for its bandwidth, as a cut. O(ranks log ranks)."""
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
        """Return a cut around one of `sinks` that cannot carry k trees per unit of weight, None if all cuts can.

        A link of bandwidth b carries floor(U * b) trees, U = `trees_per_bandwidth`. What a link carries per tree
        of a shard, floor(U * b) / k, must not shrink from call to call: settled ranks are not asked again. Raises
        InvalidInput where amounts would leave 64 bits. `sinks` as flags per rank, all ranks unless given; the cut is
        the smallest one around its sink. Cost: O(links) and few flows.
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
        raise InvalidInput("every rank must be reached by every other", f"no link leads to {name}", "add links")


MAX_MULTIPLES = 4096
MAX_ORACLE_CALLS = 128


@dataclass(frozen=True, slots=True)
class FewestTrees:
    """k trees per shard reach the time. is_proven: no smaller k does, by trees that are sure to exist."""

    k: int
    is_proven: bool


@dataclass(frozen=True, slots=True)
class _CutRoom:
    """A cut by what it needs: shards outside, and (bandwidth, links) into it."""

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
    """Return the smallest k that reaches `time_per_shard`, the optimum, which `cut` proves.

    Where switches get as much as they pass on with U * b whole everywhere, they must do so with k too, so that trees
    are sure to exist. After `MAX_MULTIPLES` multiples, or `MAX_ORACLE_CALLS` that only the oracle refused, the
    next doubling that holds is taken and not called the smallest. Mostly no oracle call: k0 makes all links whole.
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
    """Return a cut that does not carry k trees per shard, checking the ranks of all orbits again."""
    search.settled[:] = False
    return search.violated_cut(rate, k, search.typical)


def _needed(search: CutSearch, time: Fraction, cut: Nodes) -> int:
    """Return the smallest k with k * time * b whole on every link into `cut`."""
    return math.lcm(*((time * width).denominator for width, _ in search.entering(cut)))


def _known(search: CutSearch, cut: Nodes) -> _CutRoom:
    return _CutRoom(search.outside_weight(cut), tuple(search.entering(cut)))


def _switches_pass_on(topology: Topology, trees_per_bandwidth: Fraction) -> bool:
    """Whether every switch gets as many trees as it may pass on, so that it can be replaced by direct links."""
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

    kind "into", "out-of": what the collective has to move into (out of) `nodes`, over the bandwidth that leads there.
    kind "received", "sent": allreduce makes p groups of ranks receive (send) 2 (p - 1) M in all, over the sum of the
        bandwidths into (out of) them. The groups are `parts`, which may hold switches too, and besides
        every rank that is in none of them by itself.
    kind "alltoall-prices": what goes from rank to rank pays at least the distance by `prices`, one per link, and a link
        earns at most its price times its bandwidth.
    kind "cuts-into", "cuts-out-of": the cuts `parts` count as often as their `prices` say. A link pays for each cut
        that it enters (leaves), and what switches that cannot copy (add) receive pays for what they send, by `worth`.
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
    worth: tuple[tuple[int, int], ...] = ()

    def to_json(self, topology: Topology) -> Mapping[str, Any]:
        """Return the JSON-able form, nodes by id."""
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
        """Return which links the bound counts, as bool[links]; None for all of them."""
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
    """The least bandwidth time of a collective by k trees per shard, and the cut that allows no less.

    shards:              the vector of M bytes is cut into this many: N, or 1 for broadcast and reduce
    trees_per_bandwidth: U, so that a link of bandwidth b carries floor(U * b) trees; with capacities like that,
                         k trees can be packed for every shard, and with no smaller U
    k:                   trees per shard
    direction, cut:      all that has to get into (out of) these nodes, in ascending order, takes the whole time
    is_k_fixed:          k was requested: the bound holds for schedules of k trees per shard, not for all
    is_fewest:           no smaller k reaches the time by trees that are sure to exist; False: the search for a smaller
                         one was given up, or k was requested
    least_time:          time per shard that the cut proves, if k trees per shard take longer (`optima`); else None

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
        """Whether k trees per shard as fast as this are sure to exist on `topology`, by what the switches pass on."""
        inward = topology if self.direction == "into" else transpose(topology)
        return _switches_pass_on(inward, self.trees_per_bandwidth)


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

    What rounding down takes off, at most a tree per link, is made up for by the links that next carry one more.
    O(d log d) for d links.
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
"""The exact optimum is taken up to so many trees per root, whatever gap is accepted."""

COARSE_K = (1, 2, 3, 4, 6, 8, 11, 16, 22, 32, 45, 64, 91, 128, 181, 256, 512, 1024, 2048, 4096)
"""Trees per root that are tried, on average, where roots have different numbers of trees."""

_EVERY_K = 512
_MOST_TREES = 2**20


def close_rates(
    search: CutSearch, time_per_shard: Fraction, cut: Nodes, gap: Fraction
) -> Iterator[tuple[Fraction, int]]:
    """Yield (U, k), k ascending, with which trees take at most `gap` longer than `time_per_shard`.

    That is the optimum, which `cut` proves. Links of floor(U * b) trees carry k trees per shard, and no smaller U does.
    Measured bandwidths have large denominators, and then the exact optimum takes millions of trees. Every k up to 512
    is tried, then k in steps of 5 %; most are ruled out by the cuts that refused another one.
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
    """Yield numbers of trees that take at most `gap` longer than the optimum, the fewest first; the exact one last.

    Only the exact one where it takes no more than `FEW_TREES`. preferred_k: comes first if it is as close
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
