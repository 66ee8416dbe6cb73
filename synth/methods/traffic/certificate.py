"""Checks the certificates of traffic plans. Shares no code with the planner."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from chorale.synth.bounds.certificate import shortest_distances
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import CheckFailed
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.topology import Topology

PLAN_CERTIFICATES = ("traffic-prices", "copies-cut")


def _refusal(value: str) -> CheckFailed:
    return CheckFailed("the certificate of the plan is wrong: {}", value, "plan it again")


def _stated_time(certificate: Mapping[str, Any]) -> Fraction:
    try:
        return Fraction(certificate.get("time_lower", ""))
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise _refusal("a time_lower that is no rational number") from error


def check_traffic_certificate(topology: Topology, certificate: Mapping[str, Any]) -> Fraction:
    """Return the proven lower bound on the time to send the amounts in `certificate`, in units of data / bandwidth.

    Each unit of data from s to t costs at least as much as the cheapest path (the distance). In time T, the data on a
    link cost at most T * price * bandwidth, so T >= (sum of amount * distance) / (sum of price * bandwidth).
    The result is exact. O(ranks * links * log links).

    Raises:
        CheckFailed: if the certificate does not prove what it claims.
    """
    prices, amounts, ranks = certificate.get("prices"), certificate.get("amounts"), topology.compute_count
    if certificate.get("kind") != "traffic-prices":
        raise _refusal(str(certificate.get("kind")))
    if not _are_whole(prices, len(topology.links)):
        raise _refusal("prices that are not one whole number >= 0 per link")
    if not isinstance(amounts, list) or len(amounts) != ranks or not all(_are_whole(row, ranks) for row in amounts):
        raise _refusal("amounts that are not one whole number >= 0 per pair of ranks")
    assert isinstance(prices, list)
    stated = _stated_time(certificate)
    earned = sum((price * link.bandwidth for price, link in zip(prices, topology.links, strict=True)), Fraction(0))
    paid = 0
    for source, row in enumerate(amounts):
        distance = shortest_distances(topology, prices, source)
        paid += sum(amount * distance[target] for target, amount in enumerate(row) if target != source and amount)
    if earned <= 0 or paid / earned < stated:
        raise _refusal(f"prices that do not prove {stated}")
    return stated


def _are_whole(numbers: object, count: int) -> bool:
    if not isinstance(numbers, list) or len(numbers) != count:
        return False
    return all(type(number) is int and number >= 0 for number in numbers)


def proven_time_per_byte(schedule: Schedule) -> Fraction | None:
    """Return the bound on the time per byte that a traffic plan's certificate proves; None for other schedules.

    Raises:
        CheckFailed: if the certificate does not prove what it claims.
    """
    if schedule.collective.members is not None:
        return check_copies_certificate(schedule) * schedule.chunk_part
    if schedule.collective.name != CollectiveName.ALLTOALLV:
        return None
    time, sizes = check_traffic_certificate(schedule.topology, schedule.certificate), schedule.collective.sizes or ()
    amounts = [amount for row in schedule.certificate["amounts"] for amount in row]
    # The smallest chunk size for which each pair's chunks can hold its amount.
    chunk = max((Fraction(amount, size) for amount, size in zip(amounts, sizes, strict=True) if size), default=None)
    if chunk is None or any(amount and not size for amount, size in zip(amounts, sizes, strict=True)):
        raise _refusal("amounts that the schedule does not send")
    return time / chunk * schedule.chunk_part


def check_copies_certificate(schedule: Schedule) -> Fraction:
    """Return the proven lower bound on the time of a dispatch or combine, in chunks / bandwidth.

    The certificate names a set of nodes. Each chunk that starts in the set and is needed outside crosses at least one
    link out of the set, no matter where it is copied or where sums are made. The result is exact. O(links + members).

    Raises:
        CheckFailed: if the certificate does not prove what it claims.
    """
    certificate, collective = schedule.certificate, schedule.collective
    names, nodes = certificate.get("inside"), schedule.topology.node_count
    if certificate.get("kind") != "copies-cut" or collective.members is None or collective.sizes is None:
        raise _refusal(str(certificate.get("kind")))
    if not isinstance(names, list) or not all(type(node) is int and 0 <= node < nodes for node in names):
        raise _refusal("a cut of nodes that the network does not have")
    inside = set(names)
    links = (link for link in schedule.topology.links if link.src in inside and link.dst not in inside)
    width = sum((link.bandwidth for link in links), Fraction(0))
    moved = 0
    for size, (source, *others) in zip(collective.sizes, collective.members, strict=True):
        crosses = any((one in inside) != (source in inside) for one in others)
        moved += size if crosses and (source in inside) != collective.reduces else 0
    stated = _stated_time(certificate)
    if width <= 0 or moved / width < stated:
        raise _refusal(f"a cut that does not prove {stated}")
    return stated
