"""What prices of links prove about allreduce by pairs of trees over ranks and switches that act.

A pair is a tree that collects sums at a root and one that spreads the result from there. Both join all ranks; the first
may also join switches that add, the second switches that multicast. They meet at a rank; or sums end at a switch that
adds, and a path leads from there to a switch that multicasts, the same or another.
What lies between two such nodes is a path, which costs at least their distance by the prices of its links. So a pair
costs at least the cheapest tree over all ranks and some of these switches in each direction, for the best root and the
best sets of switches, which are all tried. Pairs of rate x together earn at most what links, and adders with a limit
(a price for each sum), have to sell: x <= sum(price * bandwidth) / (cheapest pair).

Nothing here shares code with the search for trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any

from chorale.synth.bounds.least_trees import Costs, least_tree, shortest_distances
from chorale.synth.errors import CheckFailed
from chorale.synth.topology.topology import Topology

KIND = "pair-prices"
MAX_TREES = 2**14
"""Sets of switches, times roots where directions differ, that are tried."""


def check_price_certificate(topology: Topology, certificate: Mapping[str, Any]) -> Fraction:
    """Return the claimed time per byte, which no pairs of trees beat; CheckFailed where it proves less.

    Exact. O(2 ** switches that act * roots * nodes ** 3); one root where all distances are the same both ways.
    """
    if certificate.get("kind") != KIND:
        raise _failure(str(certificate.get("kind")))
    proved = time_by_prices(topology, certificate.get("prices"), certificate.get("sum_prices"))
    try:
        claimed = Fraction(str(certificate.get("time_per_byte")))
    except (ValueError, ZeroDivisionError):
        raise _failure(f"{certificate.get('time_per_byte')} for a number") from None
    if claimed > proved:
        raise _failure(f"{claimed} claimed, {proved} proved")
    return claimed


def time_by_prices(topology: Topology, prices: object, sum_prices: object) -> Fraction:
    """Return the time per byte that whole prices >= 0, one for each link and by node id for adders, prove."""
    if not isinstance(prices, list) or len(prices) != len(topology.links) or not all(map(_is_price, prices)):
        raise _failure("other prices than a whole number >= 0 for each link")
    per_sum = _prices_of_sums(topology, sum_prices)
    earned = sum((price * link.bandwidth for price, link in zip(prices, topology.links, strict=True)), Fraction(0))
    for switch, price in per_sum.items():
        limit = topology.abilities[switch].reduce_bandwidth
        assert limit is not None
        earned += price * limit
    return _cheapest_pair(topology, prices, per_sum) / earned if earned else Fraction(0)


def tries(topology: Topology, are_symmetric: bool) -> int:
    """Return how many cheapest trees a check compares."""
    adders, copiers = _acting(topology)
    sets = (1 << len(adders)) + (1 << len(copiers))
    return sets if are_symmetric else sets * (topology.compute_count + len(topology.abilities))


def _prices_of_sums(topology: Topology, sum_prices: object) -> dict[int, int]:
    if not isinstance(sum_prices, Mapping) or not all(map(_is_price, sum_prices.values())):
        raise _failure("prices of sums that are no whole numbers >= 0")
    index = {name: node for node, name in enumerate(topology.node_ids)}
    limited = {node for node, ability in topology.abilities.items() if ability.reduce_bandwidth is not None}
    if not {index.get(name) for name in sum_prices} <= limited:
        raise _failure("prices of sums at nodes without a limit")
    return {index[name]: price for name, price in sum_prices.items()}


def _is_price(value: object) -> bool:
    return type(value) is int and value >= 0


def _acting(topology: Topology) -> tuple[list[int], list[int]]:
    adders = sorted(node for node, ability in topology.abilities.items() if ability.reduce)
    return adders, sorted(node for node, ability in topology.abilities.items() if ability.multicast)


def _cheapest_pair(topology: Topology, prices: Sequence[int], per_sum: Mapping[int, int]) -> int:
    """Return the least that a tree inward and one outward cost together; both have the same root."""
    adders, copiers = _acting(topology)
    ranks = list(range(topology.compute_count))
    nodes = [*ranks, *sorted({*adders, *copiers})]
    distance = {node: shortest_distances(topology, prices, node) for node in nodes}
    are_symmetric = all(distance[one][other] == distance[other][one] for one in nodes for other in nodes)
    if tries(topology, are_symmetric) > MAX_TREES:
        raise _failure(f"more than {MAX_TREES} trees to compare")
    if are_symmetric:  # then trees over the same nodes cost the same from every root
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
    """Return the cost of the cheapest tree from `root` over all ranks and any of `switches`."""

    def of_nodes(nodes: Sequence[int]) -> int:
        table: Costs = [[cost(one, other) for other in nodes] for one in nodes]
        return least_tree(table, nodes.index(root)) + sum(per_sum.get(node, 0) for node in nodes)

    return min(of_nodes([*ranks, *chosen]) for chosen in _sets(switches) if root in ranks or root in chosen)


def _sets(switches: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for size in range(len(switches) + 1):
        yield from combinations(switches, size)


def _failure(fault: str) -> CheckFailed:
    return CheckFailed("a bound must follow from its certificate", fault, "compute it again")
