"""Several collectives at once: how all of them share every link so that the last ends as early as possible.

The least T such that each commodity (a root of trees, a source of an all-to-all) is split over ways to move it, and no
link carries more than T times its bandwidth. Solved by column generation: prices of links from the linear program over
the ways so far, then the cheapest way of every commodity at these prices. Prices are also the proof: in time T links
earn at most T * price * bandwidth, and every commodity pays at least what its cheapest way costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName
from chorale.synth.linear_program import minimum
from chorale.synth.methods.alltoall.rate import integer_prices
from chorale.synth.methods.groups.certificate import proven_time
from chorale.synth.methods.groups.group import Group, require_groups
from chorale.synth.methods.groups.trees import Floats, PricedPaths, Routing, cheapest_way
from chorale.synth.sparse_matrix import of_entries
from chorale.synth.topology.topology import Topology

MAX_ROUNDS = 80
_CLOSE = 1e-4
_LEAST_PRICE = 1e-7
_STEADY = 0.5
_LEAST_SHARE = 1e-9


@dataclass(frozen=True, slots=True)
class Commodity:
    """group: number of the group;  root: place in it;  amount: what one way moves if it moves all of it."""

    group: int
    root: int
    amount: Fraction


@dataclass(frozen=True, slots=True, eq=False)
class GroupPacking:
    """ways, shares: of every commodity, shares add up to 1;  prices: int64 per link, which prove `lower`, the time."""

    groups: tuple[Group, ...]
    commodities: tuple[Commodity, ...]
    ways: tuple[tuple[Routing, ...], ...]
    shares: tuple[Floats, ...]
    prices: NDArray[np.int64]
    lower: Fraction


def pack_groups(topology: Topology, groups: Sequence[Group]) -> GroupPacking:
    """Return how the groups share the fabric, and the proof of the least time. Deterministic.

    Raises InvalidInput as `require_groups` does. Each round solves a linear program of links + commodities rows.
    """
    chosen = tuple(groups)
    require_groups(topology, chosen)
    commodities = commodities_of(chosen)
    links = topology.links
    widths = np.array([float(width) for width in links.bandwidths])[links.bandwidth_class]
    ways: list[list[Routing]] = [[] for _ in commodities]
    center = 1.0 / widths / len(widths)
    best_lower, best_prices, prices = 0.0, center, center
    for _ in range(MAX_ROUNDS):
        paths = PricedPaths.of(topology, prices + _LEAST_PRICE * float(center.min()))
        paid = 0.0
        for number, commodity in enumerate(commodities):
            way = cheapest_way(chosen[commodity.group], commodity.root, paths)
            paid += float(commodity.amount) * float(prices[way.links].sum())
            ways[number].append(way)
        lower = paid / float(prices @ widths)
        if lower > best_lower:
            best_lower, best_prices = lower, prices
        shares, duals, time = _master(commodities, ways, widths)
        if time <= best_lower * (1 + _CLOSE):
            break
        prices = _STEADY * best_prices / float(best_prices @ widths) + (1 - _STEADY) * duals / float(duals @ widths)
    whole = _best_prices(topology, chosen, [best_prices, duals])
    return GroupPacking(chosen, commodities, *_used(ways, shares), whole, proven_time(topology, chosen, whole.tolist()))


def commodities_of(groups: Sequence[Group]) -> tuple[Commodity, ...]:
    """Return a commodity for every root or source of every group."""
    found = []
    for number, group in enumerate(groups):
        ranks = len(group.ranks)
        part = 1 if group.collective.name == CollectiveName.ALLREDUCE else ranks
        found += [Commodity(number, root, Fraction(group.amount, part if part == 1 else ranks)) for root in range(part)]
    return tuple(found)


def _best_prices(topology: Topology, groups: tuple[Group, ...], candidates: Sequence[Floats]) -> NDArray[np.int64]:
    back = _links_back(topology)
    both = [(prices + prices[back]) / 2 for prices in candidates] if back is not None else []
    whole = [integer_prices(prices) for prices in (*candidates, *both)]
    return max(whole, key=lambda prices: proven_time(topology, groups, prices.tolist()))


def _links_back(topology: Topology) -> NDArray[np.int64] | None:
    """Return a link of the same bandwidth back for each link, None where there is none."""
    links = topology.links
    there = np.lexsort((links.bandwidth_class, links.src, links.dst))
    back = np.lexsort((links.bandwidth_class, links.dst, links.src))
    same = np.array_equal(links.src[there], links.dst[back]) and np.array_equal(links.dst[there], links.src[back])
    if not same or not np.array_equal(links.bandwidth_class[there], links.bandwidth_class[back]):
        return None
    mates = np.empty(len(links), dtype=np.int64)
    mates[there] = back
    return mates


def _master(
    commodities: Sequence[Commodity], ways: Sequence[Sequence[Routing]], widths: Floats
) -> tuple[list[Floats], Floats, float]:
    """Return the best shares of the ways so far, prices of links, and the time."""
    links, columns = len(widths), [len(each) for each in ways]
    rows, places, values = [], [], []
    column = 0
    for number, (commodity, listed) in enumerate(zip(commodities, ways, strict=True)):
        for way in listed:
            used, times = np.unique(way.links, return_counts=True)
            rows += [*used.tolist(), links + number]
            values += [*(times * float(commodity.amount) / widths[used]).tolist(), -1.0]
            places += [column] * (len(used) + 1)
            column += 1
    rows += list(range(links))
    places += [column] * links
    values += [-1.0] * links
    entries = np.array(rows), np.array(places), np.array(values)
    matrix = of_entries(*entries, links + len(commodities), column + 1)
    bound = np.concatenate([np.zeros(links), -np.ones(len(commodities))])
    objective = np.zeros(column + 1)
    objective[-1] = 1.0
    flow, marginals = minimum(objective, matrix, bound, "plan fewer groups at once")
    shares = np.split(np.maximum(flow[:-1], 0.0), np.cumsum(columns)[:-1])
    return list(shares), np.abs(marginals[:links]) / widths, float(flow[-1])


def _used(
    ways: Sequence[Sequence[Routing]], shares: Sequence[Floats]
) -> tuple[tuple[tuple[Routing, ...], ...], tuple[Floats, ...]]:
    """Return the ways that carry anything, equal ones once, and their shares, which add up to 1."""
    kept_ways, kept_shares = [], []
    for listed, parts in zip(ways, shares, strict=True):
        merged: dict[Routing, float] = {}
        for way, share in zip(listed, parts.tolist(), strict=True):
            if share > _LEAST_SHARE:
                merged[way] = merged.get(way, 0.0) + share
        kept_ways.append(tuple(merged))
        kept_shares.append(np.array(list(merged.values())) / sum(merged.values()))
    return tuple(kept_ways), tuple(kept_shares)
