"""Computes the lower bounds that link prices prove for concurrent collectives. Shares no code with the planner.

Data travel between members of a group along paths, which cost at least as much as the cheapest paths. What each part of
the data needs depends on the collective:
- all-to-all: a path from its source to its target;
- allgather or broadcast: the messages by which each member first receives the part form a tree from the part's root,
  which costs at least as much as a cheapest tree;
- reduce-scatter or reduce: a tree along which the part is collected towards its root;
- allreduce: 2 (p - 1) messages between any p disjoint sets that together contain all members. For every price t, let
  p(t) be the number of sets into which messages that cost at most t could connect the members; then at least 2 (p(t) -
  1) messages cost more than t. So all messages together cost at least twice as much as a cheapest spanning tree, where
  the price between two members is that of the cheaper direction. The messages also bring each member's data to all
  others and all others' data to this member, so they cost at least as much as a cheapest tree from the member, and as
  much as a cheapest tree to it.

In time T, the data on a link cost at most T * price * bandwidth, so T >= (total cost of the data) / (sum of price *
bandwidth). Bounds are computed exactly.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from chorale.synth.bounds.certificate import Costs, least_tree
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import CheckFailed
from chorale.synth.methods.groups.group import Group
from chorale.synth.topology.topology import Topology

_FAR = 2**62


def proven_time(topology: Topology, groups: Sequence[Group], prices: Sequence[int]) -> Fraction:
    """Return the lower bound on the time, in data / bandwidth, that follows from link prices (whole numbers >= 0).

    O(ranks * links * longest path), and O(ranks^3) for the ranks of each group.

    Raises:
        CheckFailed: if `prices` does not have one whole number >= 0 per link, or if prices are too large.
    """
    links = topology.links
    if (
        len(prices) != len(links)
        or any(type(price) is not int or price < 0 for price in prices)
        or sum(prices) >= _FAR // 4
    ):
        rule = "the certificate of the groups needs an integer price >= 0 for each link"
        raise CheckFailed(rule, "", "plan them again")
    column = np.array(prices, dtype=np.int64)
    by_class = (int(column[links.bandwidth_class == number].sum()) for number in range(len(links.bandwidths)))
    earned = sum((total * width for total, width in zip(by_class, links.bandwidths, strict=True)), Fraction(0))
    if earned == 0:
        return Fraction(0)
    ranks = sorted({rank for group in groups for rank in group.ranks})
    distances = np.full((topology.compute_count, topology.compute_count), _FAR)
    distances[ranks] = _distances(topology, column, ranks)[:, : topology.compute_count]
    paid, known = Fraction(0), dict[tuple[object, ...], Fraction]()  # groups with equal distances cost the same
    for group in groups:
        cost = distances[np.ix_(group.ranks, group.ranks)]
        form = group.collective.name, group.collective.root, len(cost), cost.tobytes()
        if form not in known:
            known[form] = _paid(group, cost)
        paid += group.amount * known[form]
    return paid / earned


def _distances(topology: Topology, prices: Costs, sources: list[int]) -> Costs:
    """Return int64[sources, nodes]: prices of the cheapest paths. Runs Bellman-Ford for all sources in parallel."""
    links = topology.links
    order = np.argsort(links.dst, kind="stable")
    src, price = links.src[order], prices[order]
    heads, first = np.unique(links.dst[order], return_index=True)
    reached = np.full((len(sources), topology.node_count), _FAR)
    reached[np.arange(len(sources)), sources] = 0
    while True:
        nearer = np.minimum(np.minimum.reduceat(reached[:, src] + price, first, axis=1), reached[:, heads])
        if np.array_equal(nearer, reached[:, heads]):
            return reached
        reached[:, heads] = nearer


def _paid(group: Group, cost: Costs) -> Fraction:
    """Return the least cost of the data of `group` per unit of its amount. `cost[i, j]`: cost from member i to j."""
    ranks, name = len(cost), group.collective.name
    if name == CollectiveName.ALLREDUCE:
        nearer = np.minimum(cost, cost.T)
        return Fraction(max(2 * least_tree(nearer, 0), least_tree(cost, 0), least_tree(cost.T, 0)))
    if name == CollectiveName.ALLTOALL:
        return Fraction(sum(map(sum, cost.tolist())), ranks)
    directed = cost if name in (CollectiveName.ALLGATHER, CollectiveName.BROADCAST) else cost.T
    if name in (CollectiveName.BROADCAST, CollectiveName.REDUCE):
        return Fraction(least_tree(directed, group.collective.root or 0))
    if np.array_equal(cost, cost.T):  # a tree costs the same from every root
        return Fraction(least_tree(cost, 0))
    # Members between which paths are free in both directions count as one node with several roots.
    one, members = np.unique(((cost == 0) & (cost.T == 0)).argmax(axis=1), return_counts=True)
    among = directed[np.ix_(one, one)]
    return Fraction(sum(least_tree(among, root) * count for root, count in enumerate(members.tolist())), ranks)
