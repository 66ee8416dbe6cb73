"""Independent checker of the certificate of an all-to-all schedule; it shares no code with the search for one."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from chorale.synth.errors import CheckFailed
from chorale.synth.topology.topology import Topology

_RULE = "the certificate of an all-to-all schedule must hold"


def check_alltoall_certificate(topology: Topology, certificate: Mapping[str, Any]) -> Fraction:
    """Return the proven upper bound on the all-to-all rate, or raise CheckFailed.

    Every unit from s to t pays at least the price distance, and links cannot earn more than price * capacity, so
    rate <= sum of price * capacity / sum of distances. Exact. O(ranks * links * log links).
    """
    prices = certificate.get("prices")
    if certificate.get("kind") != "alltoall-prices" or not isinstance(prices, list):
        raise CheckFailed(_RULE, str(certificate.get("kind")), "make the schedule again")
    if len(prices) != len(topology.links) or not all(isinstance(price, int) and price >= 0 for price in prices):
        raise CheckFailed(_RULE, "prices that are not one whole number >= 0 per link", "make the schedule again")
    earned = sum((price * link.bandwidth for price, link in zip(prices, topology.links, strict=True)), Fraction(0))
    paid = sum(_distances(topology, prices, source) for source in range(topology.compute_count))
    try:
        stated = Fraction(certificate.get("rate_upper", ""))
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckFailed(_RULE, "a rate_upper that is no rational number", "make the schedule again") from error
    if paid == 0 or earned / paid > stated:
        raise CheckFailed(_RULE, f"prices that do not prove {stated}", "make the schedule again")
    return stated


def _distances(topology: Topology, prices: list[int], source: int) -> int:
    """Return the sum of the price distances from `source` to all ranks."""
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
    return sum(distance for node, distance in done.items() if node < topology.compute_count)
