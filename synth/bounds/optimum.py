"""Computes the optimal time of collectives along trees, the bottleneck cut, and the number of trees needed to reach it.

The weight w of a rank is the number of shards that start there, and all shards must reach all ranks. A set T of nodes
that contains a rank then needs at least w(outside T) / (bandwidth into T) time per shard, and the optimum is the
maximum over all T (bandwidth-optimal pipeline, theorem 1). In an allgather, all ranks have weight 1; in a broadcast,
only the root has weight 1 (appendix A). reduce_scatter and reduce are the same as allgather and broadcast on the
transpose. The maximum is found by Newton's method: guess a time, let the oracle (a test of all cuts by flows) find a
cut that takes longer, and continue with the time of this cut.

The smallest k is found as follows. With k trees per shard and U = k * time, a link of bandwidth b carries floor(U * b)
trees. On cuts that need the full time, rounding down must not lose a tree: U * b must be a whole number on each of
their links, so k is a multiple of some k0. On other cuts, rounding matters less if k is larger. Multiples of k0 are
tried in ascending order, and every cut that rules out a multiple is tested first for the next multiple.
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

from chorale.synth.bounds.residual_graph import LARGEST_AMOUNT, Flags, Integers, amounts_on, residual_graph
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.kernels import native
from chorale.synth.topology.topology import Topology, checked_orbits, transpose

_MANY_RANKS = 512
"""From this number of ranks on, symmetries are used, and only cuts around one rank per orbit are tested."""

Nodes = NDArray[np.int64]
"""Node indices in ascending order: the sink side T of a cut."""
Entering = list[tuple[Fraction, int]]
"""The links into a cut, grouped by bandwidth: pairs (bandwidth, number of links with this bandwidth)."""
MAX_MULTIPLES = 4096
MAX_ORACLE_CALLS = 128
Direction = Literal["into", "out-of"]


class CutSearch:
    """Finds cuts (sets of nodes) that take longer than a given time to receive the shards that start outside.

    Each search uses a longer time than the last, so ranks whose cuts were all fast enough are not tested again.
    Symmetries are used if the network is large and all ranks have the same weight.

    Args:
        weights: int64 per rank, number of shards that start there.

    Attributes:
        weights: int64 per node, number of shards that start there (0 for switches).
        units: int64 per link, its bandwidth in units of 1 / `scale`.
        ingress: int64 per node, total bandwidth of its incoming links, except self-loops, in units.
        settled: bool per node; True for a rank if all cuts that contain it are known to have enough bandwidth.
        typical: bool per rank; True for one rank of each orbit (the ranks that known symmetries map to one another).
    """

    def __init__(self, topology: Topology, weights: Integers) -> None:
        links, ranks = topology.links, topology.compute_count
        self.topology = topology
        self.units, self.scale = links.integer_bandwidths()
        self._useful = np.flatnonzero(links.src != links.dst)
        src, dst = links.src[self._useful], links.dst[self._useful]
        self._busiest = int(np.bincount(dst).max(initial=0))  # largest number of links into a node
        _require_small(int(self.units.max(initial=0)) * self._busiest, 0)
        self.ingress, self.weights = np.zeros((2, topology.node_count), dtype=np.int64)
        np.add.at(self.ingress, dst, self.units[self._useful])
        self.weights[:ranks] = weights
        self._graph, self._half_arcs = residual_graph(topology.node_count, src, dst)
        self.settled = np.zeros(topology.node_count, dtype=np.bool_)
        self.typical = np.ones(ranks, dtype=np.bool_)
        if ranks >= _MANY_RANKS and topology.automorphisms and np.all(weights == weights[0]):
            self.typical[:] = False
            self.typical[np.unique(checked_orbits(topology)[:ranks], return_index=True)[1]] = True

    def narrowest_rank(self) -> Nodes:
        """Return the cut that consists of only the rank that takes longest to receive all data. O(ranks log ranks)."""
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
        """Return a cut that contains a rank of `sinks` and cannot carry k trees per shard, or None if there is none.

        The returned cut is the smallest such cut around this rank. A link of bandwidth b carries floor(U * b) trees,
        where U is `trees_per_bandwidth`. floor(U * b) / k must not decrease from one call to the next, because settled
        ranks are not tested again. Takes O(links) and a few flow computations. Raises InvalidInput if numbers would
        exceed 64 bits.

        sinks: flags per rank; None for all ranks
        """
        links = self.topology.links
        table = [int(trees_per_bandwidth * bandwidth) for bandwidth in links.bandwidths]
        _require_small(max(table, default=0) * self._busiest, k * int(self.weights.sum()))
        amounts = np.array(table, dtype=np.int64)[links.bandwidth_class[self._useful]]
        capacity = amounts_on(self._graph, self._half_arcs, amounts)
        is_sink = np.zeros(self.topology.node_count, dtype=np.bool_)
        is_sink[: self.topology.compute_count] = True if sinks is None else sinks
        cuts = np.zeros((1, self.topology.node_count), dtype=np.bool_)
        found = native.violated_cuts(self._graph, capacity, self.weights * k, is_sink, self.settled, cuts)
        return np.flatnonzero(cuts[0]) if found else None

    def outside_weight(self, cut: Nodes) -> int:
        """Return the number of shards that start outside `cut`."""
        return int(self.weights.sum() - self.weights[cut].sum())

    def entering(self, cut: Nodes) -> Entering:
        links = self.topology.links
        inside = np.zeros(self.topology.node_count, dtype=np.bool_)
        inside[cut] = True
        classes = links.bandwidth_class[inside[links.dst] & ~inside[links.src]]
        counts = np.bincount(classes, minlength=len(links.bandwidths)).tolist()
        present = [(bandwidth, count) for bandwidth, count in zip(links.bandwidths, counts, strict=True) if count]
        _require_reached(self.topology, len(present), int(cut[0]))
        return present

    def time_per_shard(self, cut: Nodes) -> Fraction:
        """Return the least time per shard that `cut` allows: shards outside / bandwidth into the cut. O(links)."""
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


def integral_trees(topology: Topology, time_per_shard: Fraction) -> tuple[Fraction, int]:
    """Return (U, k) with U / k = `time_per_shard` and the smallest k that makes U * b an integer for all bandwidths b.

    Generalises proposition 3 of the bandwidth-optimal pipeline paper to rational bandwidths.
    """
    bandwidths = topology.links.bandwidths
    scale = math.lcm(*(bandwidth.denominator for bandwidth in bandwidths))
    time = time_per_shard / scale
    units = [int(bandwidth * scale) for bandwidth in bandwidths]
    per_unit = Fraction(time.numerator, math.gcd(time.denominator, *units))
    return per_unit * scale, int(per_unit / time)


def fewest_trees(search: CutSearch, time_per_shard: Fraction, cut: Nodes) -> tuple[int, bool]:
    """Return (smallest k found that reaches the optimum `time_per_shard`, whether smaller k are ruled out).

    `cut` proves the optimum. Let U = k * `time_per_shard`, and let k0 be the smallest k for which U * b is an integer
    for all bandwidths b into `cut`. Only multiples of k0 can reach the optimum. The search gives up after
    `MAX_MULTIPLES` multiples or `MAX_ORACLE_CALLS` tests of all cuts. Then k is doubled until it suffices, and the
    result is not proven to be the smallest. Usually, k0 makes U * b an integer on all links, and no test is needed. If
    no switch has more outgoing than incoming bandwidth, k must also preserve this when link capacities are rounded down
    to whole trees, because trees are then guaranteed to exist.
    """
    _, enough = integral_trees(search.topology, time_per_shard)
    step = _needed(search, time_per_shard, cut)
    is_balanced = _switches_pass_on(search.topology, enough * time_per_shard)
    known = [(search.outside_weight(cut), search.entering(cut))]
    k, calls = step, 0
    while k < enough and k < step * MAX_MULTIPLES and calls < MAX_ORACLE_CALLS:
        rate = k * time_per_shard
        if all(_carries(*each, rate, k) for each in known) and (
            not is_balanced or _switches_pass_on(search.topology, rate)
        ):
            calls += 1
            refusing = _refusing(search, rate, k)
            if refusing is None:
                return k, True
            known.append((search.outside_weight(refusing), search.entering(refusing)))
            if search.time_per_shard(refusing) == time_per_shard:
                step = math.lcm(step, _needed(search, time_per_shard, refusing))
        k = (k // step + 1) * step
    if k >= enough:
        return enough, True
    while k < enough:
        rate = k * time_per_shard
        if (not is_balanced or _switches_pass_on(search.topology, rate)) and _refusing(search, rate, k) is None:
            return k, False
        k *= 2
    return enough, False


def _refusing(search: CutSearch, rate: Fraction, k: int) -> Nodes | None:
    """Return a cut whose links cannot carry k trees per shard, or None. Also tests ranks that are already settled."""
    search.settled[:] = False
    return search.violated_cut(rate, k, search.typical)


def _needed(search: CutSearch, time: Fraction, cut: Nodes) -> int:
    """Return the smallest k for which k * time * b is an integer for the bandwidth b of every link into `cut`."""
    return math.lcm(*((time * width).denominator for width, _ in search.entering(cut)))


def _carries(outside: int, entering: Entering, trees_per_bandwidth: Fraction, k: int) -> bool:
    """Return whether links `entering` a cut, rounded down to whole trees, carry k trees for each shard `outside`."""
    return sum(count * floor(trees_per_bandwidth * width) for width, count in entering) >= k * outside


def _switches_pass_on(topology: Topology, trees_per_bandwidth: Fraction) -> bool:
    """Return whether each switch can receive as many trees as it can send. If so, all switches can be removed."""
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
    """A lower bound (`value`) on T_B / M, in 1 / bandwidth_unit, and the node sets or prices that prove it.

    Attributes:
        kind: how the bound is proved.
            "into", "out-of": data that must enter (leave) `nodes`, divided by the bandwidth into (out of) `nodes`.
            "received", "sent": p groups of ranks receive (send) 2 (p - 1) M in an allreduce, divided by the sum of the
            bandwidths into (out of) them. The groups are `parts`, which may contain switches, and all other ranks.
            "alltoall-prices": data from s to t pay at least the price of the cheapest path from s to t, and a link
            earns at most its price times its bandwidth. `prices` has one price per link.
            "cuts-into", "cuts-out-of": the cuts `parts`, weighted by `prices`. A link's price is the total weight of
            the cuts that it enters (leaves). The `worth` of a switch that cannot copy (reduce) increases the prices of
            links into (out of) it, and lowers the prices of links out of (into) it.
        k: if not None, the bound only holds for schedules with k trees per shard.
        in_network: whether the bound also holds if switches multicast and reduce.
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
        """Return the bound as a JSON document, in which nodes are identified by their ids."""

        def names(nodes: tuple[int, ...]) -> list[str]:
            return [topology.node_ids[node] for node in nodes]

        document: dict[str, Any] = {"kind": self.kind, "nodes": names(self.nodes)}
        if self.kind in ("received", "sent"):
            document["parts"] = [names(part) for part in self.parts]
        if self.k is not None:
            document["k"] = self.k
        if self.in_network:
            document["in_network"] = True
        if self.kind in ("cuts-into", "cuts-out-of"):
            part = "gather" if self.kind == "cuts-into" else "reduce"
            weighted = zip(self.parts, self.prices, strict=True)
            document[f"{part}_cuts"] = [{"nodes": names(cut), "weight": str(w)} for cut, w in weighted]
            document[f"{part}_switches"] = {topology.node_ids[node]: str(value) for node, value in self.worth}
        elif self.prices:
            document["prices"] = list(self.prices)
            document["rate_upper"] = str(1 / (self.value * topology.compute_count))
        if topology.is_guessed(self._crossing(topology)):
            document["under"] = "assumptions"
        return document | {"time_per_byte": str(self.value)}

    def _crossing(self, topology: Topology) -> NDArray[np.bool_] | None:
        """Return bool[links]: whether the bound depends on the link. None if it may depend on all links."""
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


@dataclass(frozen=True, slots=True)
class Optimum:
    """The shortest possible bandwidth time of a collective with k trees per shard, and the cut that proves it.

    Trees reach this time on every network without switches. They also reach it if, at every switch, the sum of floor(U
    * b) over incoming links is at least the sum over outgoing links (theorem 4; reversed for reductions). This holds on
    all bidirectional networks, and for unrestricted k on all Eulerian networks. On other networks, the time is only a
    lower bound, and trees that reach it may not exist.

    Attributes:
        shards: number of shards in the vector (N, or 1 for broadcast and reduce), or the total size of uneven shards.
        trees_per_bandwidth: U, the smallest value for which k trees per shard can be packed if a link of bandwidth b
            carries floor(U * b) trees.
        k: trees per shard.
        direction, cut: the cut that proves the time. The data that must cross it in this `direction`, into or out of
            the nodes `cut` (in ascending order), take the full time.
        is_k_fixed: whether the user requested k. If so, the bound only holds for schedules with k trees per shard.
        is_fewest: whether k is known to be the smallest number that reaches the time with trees that are guaranteed to
            exist. False if the search for a smaller k gave up, or if k was requested.
        least_time: time per shard that the cut proves; only set if k trees per shard take longer (see `optima`).
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
        """Time per shard, U / k, in 1 / bandwidth_unit (1 / x* in the bandwidth-optimal pipeline paper)."""
        return self.trees_per_bandwidth / self.k

    @property
    def time_per_byte(self) -> Fraction:
        """Bandwidth time per byte of the vector, T_B / M, in 1 / bandwidth_unit."""
        return self.time_per_shard / self.shards

    @property
    def bound(self) -> Bound:
        """The lower bound, in a form that `check_certificate` can check."""
        proven = self.least_time or self.time_per_shard
        return Bound(self.direction, self.cut, proven / self.shards, self.k if self.is_k_fixed else None)

    def is_reached_by_trees(self, topology: Topology) -> bool:
        """Return whether trees that reach the optimum are guaranteed to exist on `topology` (see `Optimum`)."""
        inward = topology if self.direction == "into" else transpose(topology)
        return _switches_pass_on(inward, self.trees_per_bandwidth)


def optimum(topology: Topology, collective: Collective) -> Optimum:
    """Return the optimum over all schedules, with the smallest number k of trees per shard that reaches it.

    The search for the smallest k may give up (see `is_fewest`). Usually computes fewer than N flows. Raises
    InvalidInput for allreduce and alltoall, and if numbers would exceed 64 bits.
    """
    search = search_for(topology, collective)
    *_, (time, cut) = improving_cuts(search)
    k, is_fewest = fewest_trees(search, time, cut)
    shards, direction = shards_of_vector(topology, collective), cut_direction(collective)
    return Optimum(shards, k * time, k, direction, node_set(cut), is_fewest=is_fewest)


def search_for(topology: Topology, collective: Collective) -> CutSearch:
    """Return a search for the cuts that limit `collective`. If it reduces data, all links are reversed."""
    weights = shards_of_ranks(topology, collective)
    return CutSearch(topology if cut_direction(collective) == "into" else transpose(topology), weights)


def shards_of_ranks(topology: Topology, collective: Collective) -> Integers:
    """Return int64[ranks]: number of shards that each rank must send to all ranks or, for reductions, receive as sums.

    For allgatherv and reduce_scatterv, this is the size of the rank's shard.
    """
    rooted = collective.is_rooted
    if cut_direction(collective) == "into" and collective.name not in (
        CollectiveName.ALLGATHER, CollectiveName.ALLGATHERV, CollectiveName.BROADCAST
    ):  # fmt: skip
        known = "allgather, reduce_scatter, broadcast and reduce"
        raise InvalidInput(
            f"the optimum of trees is computed for {known}, not for {{}}", collective.name, "choose one of them"
        )
    root = (collective.root or 0) if rooted else 0
    if not 0 <= root < topology.compute_count:
        raise InvalidInput("the root {} is not a rank", root, f"choose from 0 to {topology.compute_count - 1}")
    if collective.sizes is not None:
        return np.array(collective.sizes, dtype=np.int64)
    weights = np.zeros(topology.compute_count, dtype=np.int64)
    weights[root if rooted else slice(None)] = 1
    return weights


def improving_cuts(search: CutSearch) -> Iterator[tuple[Fraction, Nodes]]:
    """Yield (time per shard, cut) for cuts that need more and more time. The time of the last cut is the optimum.

    Uses Newton's method on rationals (Dinkelbach), which usually yields one to three cuts. Symmetries map the cuts
    around a rank to the cuts around its image, so only one rank per orbit is tested.
    """
    cut: Nodes | None = search.narrowest_rank()
    while cut is not None:
        time = search.time_per_shard(cut)
        yield time, cut
        cut = search.violated_cut(*integral_trees(search.topology, time), search.typical)


def cut_direction(collective: Collective) -> Direction:
    """Return "into" if cuts limit how fast their nodes receive data, or "out-of" if they limit how fast nodes send."""
    outward = (CollectiveName.REDUCE_SCATTER, CollectiveName.REDUCE_SCATTERV, CollectiveName.REDUCE)
    return "out-of" if collective.name in outward else "into"


def shards_of_vector(topology: Topology, collective: Collective) -> int:
    if collective.sizes is not None:
        return sum(collective.sizes)
    return 1 if collective.is_rooted else topology.compute_count


def node_set(cut: Nodes) -> tuple[int, ...]:
    return tuple(cut.tolist())


def fixed_k_optimum(topology: Topology, collective: Collective, k: int) -> Optimum:
    """Return the optimum with exactly k trees per shard, and the cut that limits it.

    U is the smallest value for which all cuts carry k trees per shard if a link of bandwidth b carries floor(U * b)
    trees. The time per shard is within 1 / (k * smallest bandwidth) of `optimum` (bandwidth-optimal pipeline, theorems
    13 to 15). Parallel links are rounded down separately. Starting with one rank, each cut that is too narrow gives the
    next U to try: the smallest U that suffices for this cut. Raises InvalidInput like `optimum`, and if k < 1.
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
    """Return the smallest U for which the links into `cut` carry k trees for each shard outside.

    A link of bandwidth b carries floor(U * b) trees. Rounding down costs at most one tree per link, so U is increased
    until enough links carry one more. O(d log d) for d links.
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
"""If the exact optimum takes at most this number of trees per root, it is used even if the caller accepts a gap."""

COARSE_K = (1, 2, 3, 4, 6, 8, 11, 16, 22, 32, 45, 64, 91, 128, 181, 256, 512, 1024, 2048, 4096)
"""Average numbers of trees per root to try if roots have different numbers of trees."""

_EVERY_K = 512
_MOST_TREES = 2**20


def close_rates(
    search: CutSearch, time_per_shard: Fraction, cut: Nodes, gap: Fraction
) -> Iterator[tuple[Fraction, int]]:
    """Yield (U, k), with ascending k, for which trees take at most `gap` longer than the optimum `time_per_shard`.

    U is the smallest value for which all cuts carry k trees per shard if a link of bandwidth b carries floor(U * b)
    trees. A gap helps with measured bandwidths, whose large denominators would require millions of trees for the exact
    optimum. Tries every k up to 512, then k in steps of about 5 %. Cuts that were too narrow for one k rule out most
    other k.

    cut: the cut that proves the optimum
    gap: accepted additional time, relative to the optimum
    """
    known, limit, k = [cut], time_per_shard * (1 + gap), 0
    is_balanced = _switches_pass_on(search.topology, integral_trees(search.topology, time_per_shard)[0])
    while (k := k + max(1, (k - _EVERY_K) // 20)) <= _MOST_TREES:
        if not all(_carries(search.outside_weight(each), search.entering(each), limit * k, k) for each in known):
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
    """Yield solutions that take at most `gap` longer than the optimum, by ascending tree count; finally, the optimum.

    If the exact optimum takes at most `FEW_TREES` trees per root, it is the only solution.

    gap: accepted additional time, relative to the optimum
    preferred_k: trees per root; the solution with this number is yielded first if it is within `gap`
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
