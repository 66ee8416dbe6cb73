"""The optimum of schedules with a given number of trees per shard."""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction
from math import ceil, floor

from chorale.synth.bound.cut_search import CutSearch, Nodes
from chorale.synth.bound.optimum import Optimum, cut_direction, node_set, search_for, shards_of_vector
from chorale.synth.collective import Collective
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology


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
        failed = search.violated_cut(trees_per_bandwidth, k)
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
