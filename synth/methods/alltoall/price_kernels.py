"""Flows that follow link prices: every node takes what it needs over the links by which it is cheapest to reach.

A node shares its need among its links by exp(-extra / temperature), extra being by how much a path over the link costs
more than the cheapest. So flows change smoothly with prices, and nothing needs to be stored but the prices.
"""

from __future__ import annotations

from math import exp, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.types import Matrix

Floats = NDArray[np.float64]
Nodes = NDArray[np.int32]

BUCKETS = 4096
"""Buckets of a search, used in turns; a power of two."""
_NONE = -1
_COLDEST = 30.0
"""Paths that cost this many temperatures more than the cheapest carry nothing."""


class PricedNetwork(NamedTuple):
    """Links by their ends: `incoming` and `src` by head; `outgoing`, `outgoing_links` and `heads` by tail.

    demand: int64[1 or sources, nodes]
    """

    incoming: NDArray[np.int64]
    src: Nodes
    outgoing: NDArray[np.int64]
    outgoing_links: Nodes
    heads: Nodes
    demand: Matrix[np.int64]


class PriceSearch(NamedTuple):
    """Work space of a search: distances, nodes that wait in buckets (doubly linked lists), nodes by distance."""

    distance: Floats
    first: Nodes
    next: Nodes
    previous: Nodes
    bucket: Nodes
    order: Nodes
    bins: Nodes


@inlined
def _work_space(node_count: int) -> PriceSearch:
    return PriceSearch(
        np.empty(node_count, dtype=np.float64),
        np.full(BUCKETS, _NONE, dtype=np.int32),
        np.empty(node_count, dtype=np.int32),
        np.empty(node_count, dtype=np.int32),
        np.full(node_count, _NONE, dtype=np.int32),
        np.empty(node_count, dtype=np.int32),
        np.empty(node_count + 1, dtype=np.int32),
    )


@inlined
def _take_out(search: PriceSearch, node: int) -> None:
    before, after = search.previous[node], search.next[node]
    if before == _NONE:
        search.first[search.bucket[node]] = after
    else:
        search.next[before] = after
    if after != _NONE:
        search.previous[after] = before
    search.bucket[node] = _NONE


@inlined
def _put_in(search: PriceSearch, node: int, bucket: int) -> None:
    after = search.first[bucket]
    search.first[bucket] = node
    search.next[node] = after
    search.previous[node] = _NONE
    if after != _NONE:
        search.previous[after] = node
    search.bucket[node] = bucket


@inlined
def _search(network: PricedNetwork, prices: Floats, source: int, width: float, search: PriceSearch) -> None:
    """Fill `search.distance`, the price of the cheapest path from `source`; `prices` by tail, up to BUCKETS - 2 widths.

    Source: Meyer and Sanders, "Delta-stepping" (2003), one node after the other.
    """
    distance = search.distance
    distance[:] = np.inf
    distance[source] = 0.0
    _put_in(search, source, 0)
    waiting, current = 1, 0
    while waiting > 0:
        node = search.first[current & (BUCKETS - 1)]
        if node == _NONE:
            current += 1
            continue
        _take_out(search, node)
        waiting -= 1
        reached = distance[node]
        for position in range(network.outgoing[node], network.outgoing[node + 1]):
            head = network.heads[position]
            candidate = reached + prices[position]
            if candidate < distance[head]:
                distance[head] = candidate
                if search.bucket[head] == _NONE:
                    waiting += 1
                else:
                    _take_out(search, head)
                _put_in(search, head, max(current, int(candidate / width)) & (BUCKETS - 1))


@inlined
def _sort(search: PriceSearch) -> None:
    """Fill `search.order`: nodes by distance, in bins first."""
    distance, order, bins = search.distance, search.order, search.bins
    node_count = len(distance)
    farthest = distance.max()
    scale = (node_count - 1) / farthest if farthest > 0.0 else 0.0
    bins[:] = 0
    for node in range(node_count):
        bins[int(distance[node] * scale) + 1] += 1
    for index in range(node_count):
        bins[index + 1] += bins[index]
    for node in range(node_count):
        index = int(distance[node] * scale)
        order[bins[index]] = node
        bins[index] += 1
    for index in range(1, node_count):
        node = order[index]
        position = index
        while position > 0 and distance[order[position - 1]] > distance[node]:
            order[position] = order[position - 1]
            position -= 1
        order[position] = node


@inlined
def _put_reached_first(
    network: PricedNetwork, prices: Floats, search: PriceSearch, before: NDArray[np.bool_], index: int
) -> None:
    """Of nodes as far as that at `index` of the order, move one there that a node `before` is the way to."""
    distance, order = search.distance, search.order
    position, found = index, _NONE
    while found == _NONE and position < len(order):
        node = order[position]
        for link in range(network.incoming[node], network.incoming[node + 1]):
            tail = network.src[link]
            if before[tail] and distance[tail] + prices[link] == distance[node]:
                found = position
        position += 1
    if found != _NONE:
        node = order[found]
        for place in range(found, index, -1):
            order[place] = order[place - 1]
        order[index] = node


@inlined
def _weigh(
    network: PricedNetwork, prices: Floats, temperature: float, search: PriceSearch, weight: Floats, total: Floats
) -> None:
    """Fill the weights of links, 0 where they do not lead on, and their sums by node; `prices` by head.

    A price may be too small to change a distance: then a node is as far as the one before it on its cheapest path. Such
    nodes are put into the order of these paths: each has a link that costs nothing extra, and no sum is below 1.
    """
    distance, order = search.distance, search.order
    before = np.zeros(len(order), dtype=np.bool_)
    total[order[0]] = 1.0
    before[order[0]] = True
    for index in range(1, len(order)):
        if index + 1 < len(order) and distance[order[index]] == distance[order[index + 1]]:
            _put_reached_first(network, prices, search, before, index)
        node = order[index]
        here, sum_of_weights = distance[node], 0.0
        for link in range(network.incoming[node], network.incoming[node + 1]):
            tail = network.src[link]
            extra = distance[tail] + prices[link] - here
            weight[link] = 0.0
            leads_on = distance[tail] < here or (before[tail] and extra == 0.0)
            if leads_on and extra <= _COLDEST * temperature:
                weight[link] = total[tail] * exp(-extra / temperature)
                sum_of_weights += weight[link]
        total[node] = sum_of_weights
        before[node] = True


@inlined
def _by_tail(network: PricedNetwork, prices: Floats) -> Floats:
    sorted_prices = np.empty(len(prices), dtype=np.float64)
    for position in range(len(prices)):
        sorted_prices[position] = prices[network.outgoing_links[position]]
    return sorted_prices


@compiled
def add_priced_loads(
    network: PricedNetwork,
    sources: Nodes,
    weights: NDArray[np.int64],
    prices: Floats,
    width: float,
    temperature: float,
    units: int,
    loads: NDArray[np.int64],
) -> tuple[float, float]:
    """Add the loads of the flows from `sources`, times `weights`, to `loads`, int64[links]: exact, in whole units.

    prices: float64[links] > 0 by head;  units: how many each unit of demand is. A node takes all it needs from nodes
    that come before it, so that what it passes on has arrived. Returns the sums over all units of demand of the
    distance and of the smoothed distance, -temperature * log(sum over paths of exp(-price / temperature)), whose slopes
    by price are the loads, up to rounding. O(links + nodes * bucket searches) per source.
    """
    node_count = network.demand.shape[1]
    search, by_tail = _work_space(node_count), _by_tail(network, prices)
    weight, total = np.zeros(len(prices), dtype=np.float64), np.empty(node_count, dtype=np.float64)
    need = np.empty(node_count, dtype=np.int64)
    paid = smooth = 0.0
    for index in range(len(sources)):
        source, times, demand = sources[index], weights[index], network.demand[index % len(network.demand)]
        _search(network, by_tail, source, width, search)
        _sort(search)
        _weigh(network, prices, temperature, search, weight, total)
        for node in range(node_count):
            need[node] = demand[node] * units
            wanted = float(times * demand[node])
            paid += wanted * search.distance[node]
            smooth += wanted * (search.distance[node] - temperature * log(total[node]))
        for step in range(node_count - 1, 0, -1):
            node = search.order[step]
            missing, heaviest = need[node], -1
            share = float(missing) / total[node]
            for link in range(network.incoming[node], network.incoming[node + 1]):
                if weight[link] > 0.0:
                    flow = min(missing, np.int64(share * weight[link]))
                    missing -= flow
                    loads[link] += times * flow
                    need[network.src[link]] += flow
                    if heaviest < 0 or weight[link] > weight[heaviest]:
                        heaviest = link
            if missing > 0:  # what rounding down left over
                loads[heaviest] += times * missing
                need[network.src[heaviest]] += missing
    return paid, smooth
