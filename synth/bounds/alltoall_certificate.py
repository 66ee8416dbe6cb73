"""Independent checker of the certificate of an all-to-all schedule; it shares no code with the search for one."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from chorale.synth.bounds.least_trees import shortest_distances
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
    ranks = range(topology.compute_count)
    paid = sum(sum(shortest_distances(topology, prices, source)[: len(ranks)]) for source in ranks)
    try:
        stated = Fraction(certificate.get("rate_upper", ""))
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckFailed(_RULE, "a rate_upper that is no rational number", "make the schedule again") from error
    if paid == 0 or earned / paid > stated:
        raise CheckFailed(_RULE, f"prices that do not prove {stated}", "make the schedule again")
    return stated
