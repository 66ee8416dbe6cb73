"""Checks certificates of bounds and of all-to-all schedules. Shares no code with the searches that produce them.

A certificate proves that no schedule is faster than a bound. So a verified schedule that reaches the bound is optimal.

Pairs of trees: let x be the rate of each root, and let a and r be the bandwidths that out-trees and in-trees use on
each link. x(outside T) is the total rate of the roots outside T. Every set T that contains a rank satisfies
x(outside T) <= a(into T) and x(outside T) <= r(out of T). At each switch, incoming a is at least outgoing a, and
incoming r is at most outgoing r. On each link, a + r is at most the link's bandwidth. A weighted sum of these
inequalities bounds the sum of x.

Prices: a pair consists of an inward tree, which collects sums at its root, and an outward tree, which spreads the
result. Both trees contain all ranks. Inward trees may also contain switches that reduce data; outward trees may contain
switches that multicast. Either both trees have the same rank as root, or the inward tree ends at a switch that reduces
data and sends the sums along a path to a switch that multicasts. Each edge of a tree is a path of links, which costs at
least as much as the cheapest path between its ends. So a pair costs at least as much as the cheapest inward tree plus
the cheapest outward tree. To find these, all roots and all sets of switches are compared. If the total rate of all
pairs is x, the pairs cost at least x times as much as the cheapest pair. They cost at most the sum of price * bandwidth
over all links, plus the sum of (price of one sum) * rate over all switches that reduce data at a limited rate. So x is
at most the total of both sums, divided by the cost of the cheapest pair.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.errors import CheckFailed
from chorale.synth.topology.topology import Topology

Costs = NDArray[np.int64]
"""Costs[a, b]: cost of the arc from node a to node b."""
_FAR = 2**62
_RULE = "the certificate of the all-to-all schedule is wrong: {}"
PAIR_PRICES = "pair-prices"
PAIR_KINDS = ("tree-pairs", PAIR_PRICES)
MAX_TREES = 2**14
"""Maximum number of trees to compare: one per set of switches, times the number of roots if costs are asymmetric."""


def least_tree(cost: Costs, root: int) -> int:
    """Return the cost of the cheapest tree from `root` to all nodes. The arc from a to b costs `cost[a, b]`.

    Chu-Liu/Edmonds algorithm: subtract the cost of each node's cheapest incoming arc from all its incoming arcs. If
    arcs of cost 0 do not reach all nodes yet, merge each cycle of such arcs into one node and repeat both steps.
    """
    paid = 0
    while len(cost) > 1:
        arcs = cost.copy()
        np.fill_diagonal(arcs, _FAR)
        arcs[:, root] = _FAR
        least = arcs.min(axis=0)
        least[root] = 0
        paid += sum(least.tolist())
        arcs -= least
        reached, latest = np.zeros(len(arcs), dtype=np.bool_), np.array([root])
        while len(latest):
            reached[latest] = True
            latest = np.flatnonzero((arcs[latest] == 0).any(axis=0) & ~reached)
        if reached.all():
            break
        # contract each cycle of zero-cost arcs
        parent = arcs.argmin(axis=0)
        parent[root] = root
        above, lowest = parent, np.arange(len(parent))
        for _ in range(len(parent).bit_length()):  # find the lowest node number on each cycle
            lowest, above = np.minimum(lowest, lowest[above]), above[above]
        on_cycle = np.isin(np.arange(len(parent)), above)
        _, label = np.unique(np.where(on_cycle, lowest, np.arange(len(parent))), return_inverse=True)
        order = np.argsort(label, kind="stable")
        first = np.flatnonzero(np.diff(label[order], prepend=-1))
        by_row = np.minimum.reduceat(arcs[order], first, axis=0)
        cost, root = np.minimum.reduceat(by_row[:, order], first, axis=1), int(label[root])
    return paid


def shortest_distances(topology: Topology, prices: Sequence[int], source: int) -> list[int]:
    """Return the price of the cheapest path from `source` to each node. O(links * log links)."""
    leaving: list[list[tuple[int, int]]] = [[] for _ in range(topology.node_count)]
    for src, dst, price in zip(topology.links.src.tolist(), topology.links.dst.tolist(), prices, strict=True):
        leaving[src].append((dst, price))
    done: dict[int, int] = {}
    heap = [(0, source)]
    while heap:
        distance, node = heapq.heappop(heap)
        if node in done:
            continue
        done[node] = distance
        for dst, price in leaving[node]:
            if dst not in done:
                heapq.heappush(heap, (distance + price, dst))
    return [done[node] for node in range(topology.node_count)]


def check_alltoall_certificate(topology: Topology, certificate: Mapping[str, Any]) -> Fraction:
    """Return the upper bound on the all-to-all rate that `certificate` proves. Raises CheckFailed if it proves none.

    Each unit of data from s to t costs at least as much as the cheapest path (the distance from s to t), and the data
    on a link cost at most price * capacity. So rate <= (sum of price * capacity) / (sum of distances). The result is
    exact. O(ranks * links * log links).
    """
    prices = certificate.get("prices")
    if certificate.get("kind") != "alltoall-prices" or not isinstance(prices, list):
        raise CheckFailed(_RULE, str(certificate.get("kind")), "synthesize the schedule again")
    if len(prices) != len(topology.links) or not all(isinstance(price, int) and price >= 0 for price in prices):
        raise CheckFailed(_RULE, "prices that are not one whole number >= 0 per link", "synthesize the schedule again")
    earned = sum((price * link.bandwidth for price, link in zip(prices, topology.links, strict=True)), Fraction(0))
    ranks = range(topology.compute_count)
    paid = sum(sum(shortest_distances(topology, prices, source)[: len(ranks)]) for source in ranks)
    try:
        stated = Fraction(certificate.get("rate_upper", ""))
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckFailed(_RULE, "a rate_upper that is no rational number", "synthesize the schedule again") from error
    if paid == 0 or earned / paid > stated:
        raise CheckFailed(_RULE, f"prices that do not prove {stated}", "synthesize the schedule again")
    return stated


_KINDS = {
    CollectiveName.ALLGATHER: ("into", "cuts-into"),
    CollectiveName.REDUCE_SCATTER: ("out-of", "cuts-out-of"),
    CollectiveName.ALLREDUCE: ("into", "out-of", "received", "sent"),
    CollectiveName.BROADCAST: ("into", "cuts-into"),
    CollectiveName.REDUCE: ("out-of", "cuts-out-of"),
    CollectiveName.ALLTOALL: ("into", "out-of", "alltoall-prices"),
    CollectiveName.ALLGATHERV: ("into",),
    CollectiveName.REDUCE_SCATTERV: ("out-of",),
}


def check_certificate(topology: Topology, collective: Collective, certificate: Mapping[str, Any]) -> Fraction:
    """Return the time per byte that `certificate` claims. Raises CheckFailed unless it proves this for `collective`.

    Computed exactly, in plain Python. O(links + size of the certificate).
    """
    kind = certificate.get("kind")
    if kind not in _KINDS.get(collective.name, ()):
        raise _failure(f"{kind} for {collective}")
    claimed = _rational(certificate.get("time_per_byte"))
    if kind in ("received", "sent"):
        proved = _by_groups(topology, certificate, kind == "sent")
    elif kind in ("cuts-into", "cuts-out-of"):
        proved = _by_weighted_cuts(topology, collective, certificate, kind == "cuts-out-of")
    elif kind == "alltoall-prices":
        proved = 1 / (check_alltoall_certificate(topology, certificate) * topology.compute_count)
    else:
        proved = _by_cut(topology, collective, certificate, kind == "out-of")
    if claimed > proved:
        raise _failure(f"{claimed} claimed, {proved} proved")
    return claimed


def _by_cut(topology: Topology, collective: Collective, certificate: Mapping[str, Any], outward: bool) -> Fraction:
    inside = _nodes(topology, certificate.get("nodes"))
    links = topology.links
    near, far = (links.src, links.dst) if outward else (links.dst, links.src)
    member = np.zeros(topology.node_count, dtype=bool)
    member[list(inside)] = True
    classes = links.bandwidth_class[member[near] & ~member[far]]
    crossing = [links.bandwidths[bandwidth_class] for bandwidth_class in classes.tolist()]
    if not crossing:
        raise _failure("a cut without links")
    moved = _moved(topology, collective, inside)
    if certificate.get("k") is None:
        return moved / sum(crossing, Fraction(0))
    if collective.name in (CollectiveName.ALLREDUCE, CollectiveName.ALLTOALL) or collective.sizes is not None:
        raise _failure(f"trees per shard for {collective}")
    # In less than `time`, a link of bandwidth b carries an integer number of trees below k * b * time.
    k, shards = certificate["k"], 1 if collective.is_rooted else topology.compute_count
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise _failure(f"k = {k}")
    time = _rational(certificate.get("time_per_byte")) * shards
    carried = sum(ceil(k * bandwidth * time) - 1 for bandwidth in crossing)
    return time / shards if carried < k * moved * shards else Fraction(0)


def _by_weighted_cuts(
    topology: Topology, collective: Collective, certificate: Mapping[str, Any], outward: bool
) -> Fraction:
    """Return the time per byte that a weighted sum of cut constraints and switch constraints proves.

    A switch that cannot copy data must not send more than it receives. For reductions (`outward`), a switch that cannot
    reduce data must not receive more than it sends.
    """
    part, counted = "reduce" if outward else "gather", [Fraction(0)] * topology.compute_count
    for name in certificate.get(f"{part}_switches") or ():
        ability = topology.abilities.get(topology.node_ids.index(name)) if name in topology.node_ids else None
        if ability is not None and (ability.reduce if outward else ability.multicast):
            raise _failure(f"{name}, which {'adds' if outward else 'multicasts'}")
    prices = _prices(topology, certificate, part, counted, outward)
    earned = Fraction(0)
    for link, price in zip(topology.links, prices, strict=True):
        earned += link.bandwidth * max(price, Fraction(0))
    if not earned:
        raise _failure("cuts without links")
    if collective.root is not None:
        return counted[collective.root] / earned
    return sum(counted, Fraction(0)) / earned / topology.compute_count


def _moved(topology: Topology, collective: Collective, inside: set[int]) -> Fraction:
    """Return the fraction of the vector that must enter `inside` or, if the collective reduces, leave it."""
    ranks = topology.compute_count
    within = sum(1 for node in inside if node < ranks)
    if not 0 < within < ranks:
        raise _failure("a cut that does not part the ranks")
    if collective.is_rooted:
        return Fraction(int(collective.root not in inside))
    if collective.name == CollectiveName.ALLREDUCE:
        return Fraction(1)
    if collective.sizes is not None:
        outside = sum(size for rank, size in enumerate(collective.sizes) if rank not in inside)
        return Fraction(outside, sum(collective.sizes))
    if collective.name == CollectiveName.ALLTOALL:
        return Fraction(within * (ranks - within), ranks)
    return Fraction(ranks - within, ranks)


def _by_groups(topology: Topology, certificate: Mapping[str, Any], outward: bool) -> Fraction:
    """Return the lower bound on the time per byte: 2 (groups - 1) / total bandwidth into (if `outward`, out of) groups.

    The formula is corrected for switches that reduce data at a limited rate and belong to no group. Proof: treat every
    group as one process. p processes need at least 2 (p - 1) messages to compute a sum and send it to all: the first
    process that knows the sum depends on p - 1 messages, and every other process receives one more.
    """
    parts = certificate.get("parts")
    if not isinstance(parts, list):
        raise _failure("no parts")
    groups = [_nodes(topology, part) for part in parts]
    ranks = [{node for node in group if node < topology.compute_count} for group in groups]
    covered = set().union(*ranks)
    # Switches that add (if sends are counted: switches that multicast) must be in exactly one group. Exception: if
    # received messages are counted, a switch with a limit on adding may be outside all groups, because every process
    # must still receive each of the sums that this switch computes. `limited` is the total rate of these switches.
    limited = Fraction(0)
    for node, ability in topology.abilities.items() if certificate.get("in_network") else ():
        times = sum(node in group for group in groups)
        if times > 1:
            raise _failure(f"{topology.node_ids[node]} in {times} groups")
        if times == 0 and not outward and ability.reduce and ability.reduce_bandwidth is not None:
            limited += ability.reduce_bandwidth
        elif times == 0 and (ability.multicast if outward else ability.reduce):
            raise _failure(f"{topology.node_ids[node]} in no group, which adds or multicasts")
    if not all(ranks) or len(covered) != sum(map(len, ranks)):
        raise _failure("groups without ranks or with ranks in common")
    groups += [{rank} for rank in range(topology.compute_count) if rank not in covered]
    member: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        for node in group:
            member.setdefault(node, []).append(index)
    crossings, links = Counter[int](), topology.links
    near_end, far_end = (links.src, links.dst) if outward else (links.dst, links.src)
    ends = zip(near_end.tolist(), far_end.tolist(), links.bandwidth_class.tolist(), strict=True)
    for near, far, bandwidth_class in ends:
        crossings[bandwidth_class] += sum(1 for index in member.get(near, ()) if far not in groups[index])
    bandwidth = sum(links.bandwidths[place] * count for place, count in crossings.items())
    count = len(groups)
    if count < 2:
        raise _failure("a single group")
    if bandwidth < count * limited:
        return count / Fraction(bandwidth)
    return 2 * (count - 1) / (Fraction(bandwidth) + limited * (count - 2))


def _nodes(topology: Topology, names: object) -> set[int]:
    if not isinstance(names, list):
        raise _failure(f"{names} for a list of node ids")
    index = {name: node for node, name in enumerate(topology.node_ids)}
    if not set(names) <= set(index):
        raise _failure("unknown nodes")
    return {index[name] for name in names}


def _rational(text: object) -> Fraction:
    try:
        return Fraction(str(text))
    except (ValueError, ZeroDivisionError):
        raise _failure(f"{text} for a number") from None


def _failure(fault: str) -> CheckFailed:
    return CheckFailed("the certificate does not prove its bound: {}", fault, "compute it again")


def check_pair_certificate(topology: Topology, certificate: Mapping[str, Any]) -> Fraction:
    """Return the time per byte that `certificate` claims for pairs of trees. Raises CheckFailed if this is not proven.

    The result is exact. O(links * cuts) for the kind "tree-pairs". With prices and s switches that reduce or multicast,
    O(2 ** s * roots * nodes ** 3), where the factor `roots` is omitted if distances are symmetric.
    """
    claimed = _rational(certificate.get("time_per_byte"))
    if certificate.get("kind") == PAIR_PRICES:
        proved = time_by_prices(topology, certificate.get("prices"), certificate.get("sum_prices"))
    else:
        proved = proven_time(topology, certificate)
    if claimed > proved:
        raise _failure(f"{claimed} claimed, {proved} proved")
    return claimed


def proven_time(topology: Topology, certificate: Mapping[str, Any]) -> Fraction:
    """Return the time per byte that the weights in `certificate` prove, ignoring the time that it claims."""
    if certificate.get("kind") != "tree-pairs":
        raise _failure(str(certificate.get("kind")))
    counted = [Fraction(0)] * topology.compute_count
    gather = _prices(topology, certificate, "gather", counted, outward=False)
    reduce = _prices(topology, certificate, "reduce", counted, outward=True)
    earned = Fraction(0)
    for index, link in enumerate(topology.links):
        earned += link.bandwidth * max(gather[index], reduce[index], Fraction(0))
    return min(counted) / earned if earned else earned


def _prices(
    topology: Topology, certificate: Mapping[str, Any], part: str, counted: list[Fraction], outward: bool
) -> list[Fraction]:
    """Return each link's price: the total weight of the cuts that the link enters (or leaves, if `outward`).

    A switch's `worth` is added to the prices of its incoming links and subtracted from those of its outgoing links (the
    reverse if `outward`). In addition, this function adds the total weight of the cuts without rank r to `counted[r]`.
    """
    links = topology.links
    heads, tails = (links.src, links.dst) if outward else (links.dst, links.src)
    ends = list(zip(heads.tolist(), tails.tolist(), strict=True))
    index = {name: node for node, name in enumerate(topology.node_ids)}
    price = [Fraction(0)] * len(ends)
    for inside, weight in _cuts(certificate.get(f"{part}_cuts"), index, topology.compute_count):
        for rank in range(topology.compute_count):
            counted[rank] += weight if rank not in inside else 0
        for link, (head, tail) in enumerate(ends):
            if head in inside and tail not in inside:
                price[link] += weight
    stated = certificate.get(f"{part}_switches")
    if not isinstance(stated, dict):
        raise _failure("no switches")
    worth = {index.get(name, -1): _rational(value) for name, value in stated.items()}
    if any(node < topology.compute_count or value < 0 for node, value in worth.items()):
        raise _failure("weights of nodes that are not switches, or weights below 0")
    for link, (head, tail) in enumerate(ends):
        price[link] += worth.get(head, 0) - worth.get(tail, 0)
    return price


def _cuts(cuts: object, index: Mapping[str, int], ranks: int) -> Iterator[tuple[set[int], Fraction]]:
    if not isinstance(cuts, list):
        raise _failure("no cuts")
    for cut in cuts:
        names, weight = set(cut["nodes"]), _rational(cut["weight"])
        inside = {index[name] for name in names if name in index}
        if weight < 0 or len(inside) < len(names) or not any(node < ranks for node in inside):
            raise _failure(f"a cut of weight {weight} around {sorted(names)}")
        yield inside, weight


def time_by_prices(topology: Topology, prices: object, sum_prices: object) -> Fraction:
    """Return the proven lower bound on the time per byte. Raises CheckFailed unless all prices are integers >= 0.

    prices: one price per link
    sum_prices: node id of a switch that reduces at a limited rate -> price of one sum at this switch
    """
    if not isinstance(prices, list) or len(prices) != len(topology.links) or not all(map(_is_price, prices)):
        raise _failure("other prices than a whole number >= 0 for each link")
    if not isinstance(sum_prices, Mapping) or not all(map(_is_price, sum_prices.values())):
        raise _failure("prices of sums that are no whole numbers >= 0")
    index = {name: node for node, name in enumerate(topology.node_ids)}
    limited = {node for node, ability in topology.abilities.items() if ability.reduce_bandwidth is not None}
    if not {index.get(name) for name in sum_prices} <= limited:
        raise _failure("prices of sums at nodes without a limit")
    per_sum: dict[int, int] = {index[name]: price for name, price in sum_prices.items()}
    earned = sum((price * link.bandwidth for price, link in zip(prices, topology.links, strict=True)), Fraction(0))
    for switch, price in per_sum.items():
        limit = topology.abilities[switch].reduce_bandwidth
        assert limit is not None
        earned += price * limit
    return _cheapest_pair(topology, prices, per_sum) / earned if earned else Fraction(0)


def tries(topology: Topology, are_symmetric: bool) -> int:
    """Return how many trees must be compared to find the cheapest pair of trees."""
    adders, copiers = _acting(topology)
    sets = (1 << len(adders)) + (1 << len(copiers))
    return sets if are_symmetric else sets * (topology.compute_count + len(topology.abilities))


def _is_price(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**40  # so that sums along paths fit into 64 bits


def _acting(topology: Topology) -> tuple[list[int], list[int]]:
    adders = sorted(node for node, ability in topology.abilities.items() if ability.reduce)
    return adders, sorted(node for node, ability in topology.abilities.items() if ability.multicast)


def _cheapest_pair(topology: Topology, prices: Sequence[int], per_sum: Mapping[int, int]) -> int:
    """Return the lowest total cost of an inward tree, an outward tree and a path between their roots."""
    adders, copiers = _acting(topology)
    ranks = list(range(topology.compute_count))
    nodes = [*ranks, *sorted({*adders, *copiers})]
    distance = {node: shortest_distances(topology, prices, node) for node in nodes}
    are_symmetric = all(distance[one][other] == distance[other][one] for one in nodes for other in nodes)
    if tries(topology, are_symmetric) > MAX_TREES:
        raise _failure(f"more than {MAX_TREES} trees to compare")
    if are_symmetric:  # the cost of a tree over given nodes does not depend on its root
        adders_as_roots, copiers_as_roots, ranks_as_roots = [], [], ranks[:1]
    else:
        adders_as_roots, copiers_as_roots, ranks_as_roots = adders, copiers, ranks
    inward = {
        root: _least(root, ranks, adders, lambda one, other: distance[other][one], per_sum)
        for root in (*ranks_as_roots, *adders_as_roots)
    }
    outward = {
        root: _least(root, ranks, copiers, lambda one, other: distance[one][other], {})
        for root in (*ranks_as_roots, *copiers_as_roots)
    }
    at_switches = [
        inward[end] + distance[end][start] + outward[start] for end in adders_as_roots for start in copiers_as_roots
    ]
    return min([inward[root] + outward[root] for root in ranks_as_roots] + at_switches)


def _least(root: int, ranks: Sequence[int], switches: Sequence[int], cost: Any, per_sum: Mapping[int, int]) -> int:
    """Return the cost of the cheapest tree from `root` that contains all ranks and possibly some of the `switches`."""

    def of_nodes(nodes: Sequence[int]) -> int:
        table = np.array([[cost(one, other) for other in nodes] for one in nodes])
        return least_tree(table, nodes.index(root)) + sum(per_sum.get(node, 0) for node in nodes)

    sets = (chosen for size in range(len(switches) + 1) for chosen in combinations(switches, size))
    return min(of_nodes([*ranks, *chosen]) for chosen in sets if root in ranks or root in chosen)
