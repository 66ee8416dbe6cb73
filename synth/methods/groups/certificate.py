"""What prices of links prove about several collectives at the same time; shares no code with the search for plans.

Between members of a group data travels along paths, which cost at least the price distance. Each part of the data of

- an all-to-all goes from its source to its target;
- an allgather or a broadcast reaches all members; the messages that bring it to a member for the first time form a tree
  from its root, which costs at least as much as a cheapest tree;
- a reduce-scatter or a reduce is collected along a tree towards its root, likewise;
- an allreduce needs 2 (p - 1) messages between any p groups of members. For every t, the messages longer than t have to
  join the p(t) groups that the shorter ones leave apart. So all together cost at least twice a cheapest spanning tree,
  in which the distance of two members is that of the shorter direction. They also bring what a member has to all
  others, and what the others have to it, so they cost at least as much as a cheapest tree from it, and as one to it.

In time T links earn at most T * price * bandwidth, so T >= total paid / sum of price * bandwidth. Whole numbers.
"""

from collections.abc import Sequence
from fractions import Fraction

from chorale.synth.bounds.certificate import least_tree, shortest_distances
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import CheckFailed
from chorale.synth.methods.groups.group import Group
from chorale.synth.topology.topology import Topology


def proven_time(topology: Topology, groups: Sequence[Group], prices: Sequence[int]) -> Fraction:
    """Return the lower bound on the time, in amount / bandwidth, that follows from link prices (whole numbers >= 0).

    O(ranks * links * log links + ranks^4 of a group).

    Raises:
        CheckFailed: for other prices.
    """
    links = topology.links
    if len(prices) != len(links) or any(type(price) is not int or price < 0 for price in prices):
        rule = "the certificate of the groups needs an integer price >= 0 for each link"
        raise CheckFailed(rule, "", "plan them again")
    earned = sum((price * link.bandwidth for price, link in zip(prices, links, strict=True)), Fraction(0))
    if earned == 0:
        return Fraction(0)
    distances: dict[int, list[int]] = {}
    for rank in sorted({rank for group in groups for rank in group.ranks}):
        distances[rank] = shortest_distances(topology, prices, rank)
    paid = sum((_paid(group, distances) for group in groups), Fraction(0))
    return paid / earned


def _paid(group: Group, distances: dict[int, list[int]]) -> Fraction:
    cost = [[distances[one][other] for other in group.ranks] for one in group.ranks]
    ranks, name = len(cost), group.collective.name
    turned = [list(column) for column in zip(*cost, strict=True)]
    if name == CollectiveName.ALLREDUCE:
        nearer = [
            [min(pair) for pair in zip(row, column, strict=True)] for row, column in zip(cost, turned, strict=True)
        ]
        return Fraction(group.amount * max(2 * least_tree(nearer, 0), least_tree(cost, 0), least_tree(turned, 0)))
    if name == CollectiveName.ALLTOALL:
        return Fraction(group.amount * sum(map(sum, cost)), ranks)
    if name in (CollectiveName.BROADCAST, CollectiveName.REDUCE):
        directed = cost if name == CollectiveName.BROADCAST else turned
        return Fraction(group.amount * least_tree(directed, group.collective.root or 0))
    directed = cost if name == CollectiveName.ALLGATHER else turned
    return Fraction(group.amount * sum(least_tree(directed, root) for root in range(ranks)), ranks)
