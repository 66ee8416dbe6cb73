"""Independent checker of the certificate of given traffic; it shares no code with the search for one."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from chorale.synth.bounds.certificate import shortest_distances
from chorale.synth.errors import CheckFailed
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.topology import Topology

_RULE = "the certificate of planned traffic must hold"
_WAY_OUT = "plan it again"


def check_traffic_certificate(topology: Topology, certificate: Mapping[str, Any]) -> Fraction:
    """Return the proven lower bound on the time of the amounts that `certificate` states, or raise CheckFailed.

    Every unit from s to t pays at least the price distance, and in time T links earn at most T * price * bandwidth, so
    T >= sum of amount * distance / sum of price * bandwidth. Exact. O(ranks * links * log links).
    """
    prices, amounts = certificate.get("prices"), certificate.get("amounts")
    if certificate.get("kind") != "traffic-prices":
        raise CheckFailed(_RULE, str(certificate.get("kind")), _WAY_OUT)
    if not _are_whole(prices, len(topology.links)):
        raise CheckFailed(_RULE, "prices that are not one whole number >= 0 per link", _WAY_OUT)
    ranks = topology.compute_count
    if not isinstance(amounts, list) or len(amounts) != ranks or not all(_are_whole(row, ranks) for row in amounts):
        raise CheckFailed(_RULE, "amounts that are not one whole number >= 0 per pair of ranks", _WAY_OUT)
    assert isinstance(prices, list)
    try:
        stated = Fraction(certificate.get("time_lower", ""))
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckFailed(_RULE, "a time_lower that is no rational number", _WAY_OUT) from error
    earned = sum((price * link.bandwidth for price, link in zip(prices, topology.links, strict=True)), Fraction(0))
    paid = sum(_paid(topology, prices, source, amounts[source]) for source in range(ranks))
    if earned <= 0 or paid / earned < stated:
        raise CheckFailed(_RULE, f"prices that do not prove {stated}", _WAY_OUT)
    return stated


def _are_whole(numbers: object, count: int) -> bool:
    if not isinstance(numbers, list) or len(numbers) != count:
        return False
    return all(type(number) is int and number >= 0 for number in numbers)


def _paid(topology: Topology, prices: Sequence[int], source: int, amounts: Sequence[int]) -> int:
    """Return what the amounts of `source` pay along the cheapest paths."""
    distance = shortest_distances(topology, prices, source)
    return sum(amount * distance[target] for target, amount in enumerate(amounts) if target != source and amount)


def check_copies_certificate(schedule: Schedule) -> Fraction:
    """Return the proven lower bound on the time of a dispatch or combine, in chunks / bandwidth, or raise CheckFailed.

    The certificate names nodes. Each chunk that starts among them and must end outside crosses one of the links that
    lead out, however often it is copied or added up later. Exact. O(links + members).
    """
    certificate, collective = schedule.certificate, schedule.collective
    names, nodes = certificate.get("inside"), schedule.topology.node_count
    if certificate.get("kind") != "copies-cut" or collective.members is None or collective.sizes is None:
        raise CheckFailed(_RULE, str(certificate.get("kind")), _WAY_OUT)
    if not isinstance(names, list) or not all(type(node) is int and 0 <= node < nodes for node in names):
        raise CheckFailed(_RULE, "a cut of nodes that the network does not have", _WAY_OUT)
    inside = set(names)
    links = (link for link in schedule.topology.links if link.src in inside and link.dst not in inside)
    width = sum((link.bandwidth for link in links), Fraction(0))
    moved = 0
    for size, (source, *others) in zip(collective.sizes, collective.members, strict=True):
        crosses = any((one in inside) != (source in inside) for one in others)
        moved += size if crosses and (source in inside) != collective.reduces else 0
    try:
        stated = Fraction(certificate.get("time_lower", ""))
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckFailed(_RULE, "a time_lower that is no rational number", _WAY_OUT) from error
    if width <= 0 or moved / width < stated:
        raise CheckFailed(_RULE, f"a cut that does not prove {stated}", _WAY_OUT)
    return stated
